"""What is said about directories that hold no run."""

from __future__ import annotations

from pathlib import Path

from rollmill.storage.missing_runs import why_no_run


def test_a_misspelt_directory_is_said_to_be_missing_and_similar_runs_are_named(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "frst2").mkdir()  # No run.
    message = why_no_run(tmp_path / "frst")
    assert message == f"{tmp_path}/frst is not a run: there is no such directory; did you mean {tmp_path}/first?"
    assert why_no_run("no/such/run").endswith("no such directory; give the directory that train printed")


def test_an_address_on_the_hub_is_no_directory() -> None:
    message = why_no_run(Path("hf://somebody/cartpole"))
    assert message.startswith("hf://somebody/cartpole is an address on the Hugging Face Hub")
    assert "huggingface_hub.snapshot_download('somebody/cartpole')" in message


def test_a_run_that_failed_at_its_start_is_told_from_other_directories(tmp_path: Path) -> None:
    assert "is not a run: there is no config.json in it" in why_no_run(tmp_path)
    (tmp_path / "run.log").write_text("failed")
    assert f"ended before it learned anything, so that there is nothing to continue or to play: {tmp_path}/run.log" in (
        why_no_run(str(tmp_path))
    )

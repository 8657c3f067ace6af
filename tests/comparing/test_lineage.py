"""Population-based training in the report."""

from __future__ import annotations

from pathlib import Path

from tests.comparing.test_report import a_run

from rollmill.comparing.page import write_report
from rollmill.pbt.history import HISTORY_FILE, PbtEvent, append_event


def event(policy: str, steps: int, rate: float, source: str | None = None, generation: int = 0) -> PbtEvent:
    return PbtEvent(
        policy=policy,
        agent_steps=steps,
        kind="start" if not steps else "mutated" if source is None else "replaced",
        source=source,
        generation=generation,
        scores={} if not steps else {"a": 2.0, "<b>": -1.5},
        numbers={"learning_rate": rate, "entropy_coef": 0.0},
    )


def test_lineage_and_numbers_are_on_the_page(tmp_path: Path) -> None:
    run = a_run(tmp_path / "population", "gym/CartPole-v1", 1, 1.0)
    for each in (
        *(event("a", 0, 1e-3), event("<b>", 0, 3e-4)),
        *(event("a", 100, 1.2e-3), event("<b>", 110, 1e-3, source="a", generation=1)),
    ):
        append_event(run, each)
    a_run(tmp_path / "alone", "gym/CartPole-v1", 2, 1.0)
    report = write_report([run, tmp_path / "alone"], tmp_path / "report")
    (found,) = report.figures["pbt"]
    assert (found["events"], found["replacements"]) == (4, 1)
    assert found["numbers"] == {
        "a": {"learning_rate": 1.2e-3, "entropy_coef": 0.0},
        "<b>": {"learning_rate": 1e-3, "entropy_coef": 0.0},
    }
    page = report.page.read_text()
    assert "0.0012" in page
    assert "<b>" not in page.replace("<body>", "")
    assert sum(path.name.startswith("pbt-") for path in report.pictures) == 1


def test_a_history_that_somebody_has_changed_is_read_as_far_as_it_makes_sense(tmp_path: Path) -> None:
    run = a_run(tmp_path / "population", "gym/CartPole-v1", 1, 1.0)
    append_event(run, event("a", 0, 1e-3))
    with (run / HISTORY_FILE).open("a") as file:
        for wrong in (
            '{"policy": 3, "agent_steps": 5, "kind": "kept", "source": null, "generation": 0, "scores": {}, '
            '"numbers": {}}',
            '{"policy": "a", "agent_steps": 5, "kind": "kept", "source": null, "generation": 0, "scores": {}, '
            '"numbers": {"learning_rate": "x"}}',
            "[1]",
        ):
            file.write(wrong + "\n")
    (found,) = write_report([run], tmp_path / "report").figures["pbt"]
    assert found["events"] == 1

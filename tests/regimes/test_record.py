"""What is written down of a run's start and end."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import rollmill
from rollmill.regimes.record import RunRecord, describe_end, next_commands
from rollmill.runtime.logs import run_log
from rollmill.runtime.ranks import Ranks
from rollmill.settings.run_config import changed_settings, write_config
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore

CONFIG = rollmill.make_config("gym/CartPole-v1", {"total_steps": 5000, "max_seconds": 90, "target_return": 475})


def recorded(
    run_dir: Path, ending: Any, *, resume: bool = False, changed: dict[str, Any] | None = None
) -> tuple[list[str], str]:
    """What is shown of a run that ends so, and its ``run.log``."""
    shown: list[str] = []
    record = RunRecord(CONFIG, run_dir, Ranks(), resume=resume, changed=changed or {}, show=shown.append)
    try:
        with run_log(run_dir / "run.log"), record:
            record.agent_steps = 1234
            if isinstance(ending, BaseException):
                raise ending
            record.ended(ending, mean_return=480.0, received=signal.SIGTERM if ending == "signal" else None)
    except (OSError, KeyboardInterrupt):
        pass
    return shown, (run_dir / "run.log").read_text()


def test_the_log_answers_what_was_run_with_what(tmp_path: Path) -> None:
    shown, log = recorded(tmp_path, "total_steps")
    assert shown[0] == f"run directory: {tmp_path}"
    assert "start: a new async run of gym/CartPole-v1, pid " in log
    for package in ("Python 3", f"rollmill {rollmill.__version__}", "torch 2", "gymnasium 1"):
        assert f" {package}" in log
    assert re.search(r"command: \S*python\S* ", log)
    differing = next(line for line in log.splitlines() if "differ from the defaults: " in line)
    assert "total_steps=5000, max_seconds=90, target_return=475" in differing
    assert "eval_every" not in differing
    assert log.rstrip().endswith("end: finished: 1,234 of 5,000 agent steps")


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("total_steps", "end: finished: 1,234 of 5,000 agent steps"),
        ("max_seconds", "end: time limit: max_seconds=90; 1,234 of 5,000 agent steps"),
        (
            "target_return",
            "end: target reached: mean return of the last 100 episodes 480.00, target_return=475; 1,234 of",
        ),
        ("signal", "end: stopped by the user (SIGTERM): what was learned is saved; 1,234 of 5,000 agent steps"),
        ("caller", "end: stopped by its caller: what was learned is saved; 1,234 of 5,000 agent steps"),
        (KeyboardInterrupt(), "end: stopped by the user after 1,234 agent steps; progress since the last"),
    ],
)
def test_the_end_and_its_reason_are_shown_and_logged(tmp_path: Path, ending: Any, said: str) -> None:
    shown, log = recorded(tmp_path, ending)
    assert shown[1].startswith(said)
    assert said in log
    assert len(shown) == 2, "there is nothing to continue, to evaluate or to watch"


def test_who_interrupts_the_closing_of_a_run_loses_nothing(tmp_path: Path) -> None:
    record = RunRecord(CONFIG, tmp_path, Ranks(), resume=False, changed={}, show=None)

    def end() -> None:
        with run_log(tmp_path / "run.log"), record:
            record.ended("total_steps", mean_return=480.0, received=None)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        end()
    (end,) = [line for line in (tmp_path / "run.log").read_text().splitlines() if "end: " in line]
    assert end.endswith("of 5,000 agent steps; interrupted while the run was being closed")


def test_a_failure_is_logged_and_left_to_be_shown_to_who_catches_it(tmp_path: Path) -> None:
    shown, log = recorded(tmp_path, OSError("no room\nand more"))
    assert "end: failed after 1,234 agent steps: OSError: no room" in log
    assert "and more" not in log
    assert len(shown) == 1


def test_the_end_names_the_commands_that_continue_evaluate_and_watch(tmp_path: Path) -> None:
    run_dir = tmp_path / "my runs" / "first"
    run_dir.mkdir(parents=True)
    write_config(run_dir, CONFIG)
    CheckpointStore(run_dir / "checkpoints", CheckpointConfig()).save({"model": {}}, 70)
    shown, _ = recorded(run_dir, OSError("no room"))
    assert shown[1:] == [
        f"continue: rollmill train --resume '{run_dir}'",
        f"evaluate: rollmill eval '{run_dir}'",
        f"watch:    rollmill watch '{run_dir}'",
    ]
    # As it was told, a run that has all it was asked for would end again at once.
    for ended_by, more in (
        ("total_steps", " --total-steps 10000"),
        ("max_seconds", " --max-seconds 180"),
        ("target_return", " --target-return none"),
        ("signal", ""),
    ):
        assert next_commands(run_dir, CONFIG, ended_by, Ranks())[0].endswith(f"'{more}")  # type: ignore[arg-type]
    assert "torchrun" in next_commands(run_dir, CONFIG, None, Ranks(world_size=2, local_world_size=2))[0]


def test_what_a_resume_changed_is_shown_and_logged(tmp_path: Path) -> None:
    now = rollmill.make_config("gym/CartPole-v1", {"total_steps": 9000, "target_return": 475, "learning_rate": 0.5})
    changed = changed_settings(CONFIG, now)
    shown, log = recorded(tmp_path, "signal", resume=True, changed=changed)
    said = "settings changed on resume: learner.learning_rate=0.5 (was 0.001), total_steps=9000 (was 5000)"
    assert shown[1] == f"{said}, max_seconds=none (was 90)"
    assert said in log
    assert "start: a resumed async run" in log
    assert "settings changed on resume: none" in recorded(tmp_path, "signal", resume=True)[1]


def test_a_signal_of_another_process_is_not_blamed_on_the_user() -> None:
    assert describe_end("signal", CONFIG, agent_steps=0, mean_return=None).startswith("stopped by another process")


def test_a_run_is_shown_in_one_line(tmp_path: Path) -> None:
    run = rollmill.Run(tmp_path, 70, 12.5, "a table\nof many\nlines", "total_steps")
    assert repr(run) == f"Run(dir={tmp_path!r}, agent_steps=70, episode_return=12.5, ended_by='total_steps')"


def test_the_log_says_once_what_is_not_written_and_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, log = recorded(tmp_path / "all", "total_steps")
    assert "not written here" not in log
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    shown, log = recorded(tmp_path / "none", "total_steps")
    line = "not written here: learning_curve.png (pip install matplotlib)"
    assert log.count(line) == 1
    assert not any("not written" in each for each in shown)

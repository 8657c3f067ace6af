"""The picture with a panel for each task."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from rollmill.reporting.metrics import MetricsWriter
from rollmill.reporting.task_plots import plot_tasks, tasks_in

NAMES = ("atari/pong", "gym/CartPole-v1", "own$task", "a/b/c", "d", "e", "f")


def write(run_dir: Path, names: tuple[str, ...], rows: int = 5) -> Path:
    with MetricsWriter(run_dir) as writer:
        for row in range(rows):
            returns = {f"task/{name}/episode_return": None if row == 0 else float(row) for name in names}
            score = {"task/atari/pong/score": None if row == 0 else row / 10} if "atari/pong" in names else {}
            writer.write({"agent_steps": row * 100, "time_s": float(row), **returns, **score})
    return run_dir


def test_every_task_has_a_panel(tmp_path: Path) -> None:
    one = plot_tasks(write(tmp_path / "one", NAMES[:1]), tmp_path / "one.png")
    all_of_them = plot_tasks(write(tmp_path / "all", NAMES), tmp_path / "all.png")
    assert one is not None
    assert all_of_them is not None
    # Five panels a row, so that seven have two rows.
    with Image.open(all_of_them) as wide, Image.open(one) as narrow:
        (width, height), (of_one, height_of_one) = wide.size, narrow.size
    assert width == 5 * of_one
    assert 1.5 < height / height_of_one < 2


def test_tasks_are_found_in_a_record(tmp_path: Path) -> None:
    record: dict[str, object] = {f"task/{name}/episode_return": 1.0 for name in NAMES}
    record |= {"episode_return": 1.0, "task/d/samples": 0.5, "policy/0/episode_return": 2.0}
    assert tuple(tasks_in(record)) == NAMES


def test_a_run_without_tasks_or_rows_has_no_picture(tmp_path: Path) -> None:
    assert plot_tasks(write(tmp_path / "none", ()), tmp_path / "none.png") is None
    assert plot_tasks(write(tmp_path / "empty", NAMES, rows=0), tmp_path / "empty.png") is None
    assert not list(tmp_path.glob("*.png"))

"""The ids of tracked runs: kept, and not taken from strangers."""

from __future__ import annotations

import json
from pathlib import Path

from rollmill.runtime.signed_files import signed
from rollmill.tracking.ids import TRACKING_FILE, TrackedIds


def test_ids_are_kept(tmp_path: Path) -> None:
    ids = TrackedIds(tmp_path)
    assert ids.get("wandb") is None
    ids.set("wandb", "a1")
    ids.set("mlflow", "b2")
    again = TrackedIds(tmp_path)
    assert [again.get(name) for name in ("wandb", "mlflow", "trackio")] == ["a1", "b2", None]
    assert [path.name for path in tmp_path.iterdir()] == [TRACKING_FILE]


def test_ids_that_a_stranger_wrote_need_trust(tmp_path: Path) -> None:
    TrackedIds(tmp_path).set("wandb", "mine")
    path = tmp_path / TRACKING_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "wandb": "another"}))
    assert TrackedIds(tmp_path).get("wandb") is None
    assert TrackedIds(tmp_path, trust=True).get("wandb") == "another"


def test_a_file_that_cannot_be_read_holds_no_ids(tmp_path: Path) -> None:
    (tmp_path / TRACKING_FILE).write_text("[1")
    assert TrackedIds(tmp_path, trust=True).get("wandb") is None


def test_the_id_of_earlier_versions_is_used_in_a_run_of_this_user(tmp_path: Path) -> None:
    (tmp_path / "wandb_id.txt").write_text("old\n")
    assert TrackedIds(tmp_path, trust=True).get("wandb") == "old"
    assert TrackedIds(tmp_path).get("wandb") is None
    (tmp_path / "config.json").write_text(json.dumps(signed({"seed": 1})))
    assert TrackedIds(tmp_path).get("wandb") == "old"

"""The estimate of a run's memory."""

from __future__ import annotations

from pathlib import Path

import pytest

import rollmill
from rollmill.regimes import running
from rollmill.runtime import cgroups
from rollmill.runtime.arena import NotEnoughMemory
from rollmill.runtime.ranks import Ranks


@pytest.mark.parametrize("algo", [None, "dqn"])
def test_all_ranks_on_a_machine_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, algo: str | None) -> None:
    from rollmill.envs.factory import probe
    from rollmill.regimes.setup import Probed

    changes: dict[str, object] = {"num_envs": 4} if algo else {"regime": "lockstep"}
    config = rollmill.make_config("gym/CartPole-v1", changes, algo=algo)
    probed = Probed(probe(config.env), 0, 1 << 20, 1 << 18)

    def prepare(world_size: int, local_world_size: int) -> running.RunSetup:
        ranks = Ranks(world_size=world_size, local_world_size=local_world_size)
        return running.prepare(config.resolved(world_size), probed, tmp_path, resume=False, ranks=ranks)

    one, both = prepare(2, 1).memory.parts, prepare(2, 2).memory.parts
    assert [part.nbytes for part in both] == [2 * part.nbytes for part in one]
    assert all(part.what.endswith(", of each of 2 ranks") for part in both)
    if algo == "dqn":  # The ranks share what one alone would keep and learn from.
        alone = {part.what.partition(" of ")[0]: part.nbytes for part in prepare(1, 1).memory.parts}
        assert sum(part.nbytes for part in both if "batches" in part.what) == alone["3 batches"]
    needed = sum(part.nbytes for part in both)
    monkeypatch.setattr(cgroups, "available_memory", lambda: needed - 1)
    prepare(2, 1)
    with pytest.raises(NotEnoughMemory, match=r", of each of 2 ranks"):
        prepare(2, 2)

"""The samplers' part of a checkpoint: packed, signed and complete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollmill.learning.collective import Alone
from rollmill.learning.in_flight import InFlight, PastVersion
from rollmill.learning.versions import ExactVersions
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.runtime.plain_data import MalformedMessageError
from rollmill.runtime.signed_files import UntrustedError
from rollmill.storage.checkpoint_file import encode_checkpoint, load_checkpoint
from rollmill.storage.group_states import GroupStates
from rollmill.storage.weights import NOT_PUBLISHED, WeightStore, add_to_layout

PATH = Path("runs/a/checkpoints/checkpoint_1.pt")
VERSIONS = [
    PastVersion(3, np.arange(5, dtype=np.uint8), (0.5, 2.0)),
    PastVersion(4, np.arange(5, 10, dtype=np.uint8), (-1.0, 0.25)),
]
GROUPS = [b"\0", b"first\0", bytes(range(256))]


def through_a_file(in_flight: InFlight, folder: Path) -> InFlight:
    """What a resumed run has of it."""
    path = folder / "checkpoint.pt"
    path.write_bytes(encode_checkpoint({"in_flight": in_flight.pack()}, 7, None))
    return InFlight.unpack(load_checkpoint(path))


def test_it_comes_back_from_a_checkpoint_as_it_was(tmp_path: Path) -> None:
    found = through_a_file(InFlight(5, VERSIONS, GROUPS), tmp_path)
    assert found.iteration == 5
    assert list(found.groups) == GROUPS
    assert [(v.version, v.weights.tolist(), v.moments) for v in found.versions] == [
        (3, [0, 1, 2, 3, 4], (0.5, 2.0)),
        (4, [5, 6, 7, 8, 9], (-1.0, 0.25)),
    ]
    assert all(v.weights.dtype == np.uint8 for v in found.versions)


def test_only_signed_states_may_be_unpickled(tmp_path: Path) -> None:
    found = through_a_file(InFlight(5, VERSIONS, GROUPS), tmp_path)
    found.require_trusted(PATH, trust=False)
    for groups in ([*GROUPS[:2], b"changed"], GROUPS[::-1], GROUPS[:2], [b"".join(GROUPS)]):
        changed = found._replace(groups=groups)
        with pytest.raises(UntrustedError, match=rf"^{PATH} is not trusted, and it holds pickled .*: it was changed"):
            changed.require_trusted(PATH, trust=False)
        changed.require_trusted(PATH, trust=True)
    with pytest.raises(UntrustedError, match="it has no signature"):
        found._replace(signature=None).require_trusted(PATH, trust=False)
    found._replace(groups=[], signature=None).require_trusted(PATH, trust=False)


@pytest.mark.parametrize(("iteration", "groups"), [(0, 0), (1, 3), (7, 3)])
def test_there_is_a_state_for_each_group_after_the_first_iteration(iteration: int, groups: int) -> None:
    InFlight(iteration, [], GROUPS[:groups]).check_complete(3)


@pytest.mark.parametrize(("iteration", "groups", "wanted"), [(0, 3, 0), (1, 0, 3), (1, 2, 3)])
def test_another_number_of_states_is_damage(iteration: int, groups: int, wanted: int) -> None:
    with pytest.raises(MalformedMessageError) as error:
        InFlight(iteration, [], GROUPS[:groups]).check_complete(3)
    assert str(error.value) == (
        f"the checkpoint has the states of {groups} groups, but at iteration {iteration} this run needs {wanted}: it "
        "is damaged or was changed; restore it, or start a new run"
    )


@pytest.mark.parametrize("iteration", [-1, "1", 1.0, True, None])
def test_an_iteration_that_is_no_number_is_damage(iteration: Any) -> None:
    with pytest.raises(MalformedMessageError, match=rf"iteration is {iteration!r}, allowed are integers from 0: it is"):
        InFlight(iteration, [], GROUPS).check_complete(3)


def test_a_checkpoint_of_another_regime_has_none() -> None:
    with pytest.raises(ValueError, match="it has no states of groups: the run that wrote it was not in lockstep"):
        InFlight.unpack({"model": {}})


def test_versions_of_a_network_of_another_size_are_refused(tmp_path: Path) -> None:
    layout = ArenaLayout()
    add_to_layout(layout, nbytes=640)
    store = WeightStore(Arena.create(layout), create=True)
    state = {"in_flight": InFlight(4, VERSIONS, GROUPS).pack()}
    exact = ExactVersions(
        num_versions=2, num_groups=1, states=GroupStates(tmp_path), first_iteration=0, collective=Alone()
    )
    with pytest.raises(ValueError, match="older versions of the network have another size"):
        exact.restore(state, store)
    assert store.newest == NOT_PUBLISHED

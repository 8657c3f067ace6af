"""Groups that are saved and restored, or rebuilt, go on as if they had never been interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.rollout.driven_worker import ROWS, STEPS, SteppedAlone, assert_holds, driving, slot_store, topology_of

from rollmill.rollout.group_builder import GroupBuilder
from rollmill.rollout.group_checkpoints import GroupCheckpoints
from rollmill.rollout.slot_policies import GroupSlots
from rollmill.runtime.plain_data import decode, encode
from rollmill.runtime.signed_files import UntrustedError
from rollmill.storage.group_states import GroupStates

EVERY, ITERATIONS, LAG, STATE_SIZE = 2, 5, 1, 3


def play(
    folder: Path, *, saves_environments: bool, first_iteration: int = 0, trust: bool = False
) -> list[NDArray[Any]]:
    """Plays until iteration 5 and checks all slots against a group that is stepped alone; the state of its core, too.

    Returns:
        ``group_rnn_state [ROWS, STATE_SIZE]`` as each iteration began with it.
    """
    store = slot_store(topology_of(groups=1, slots=LAG + 1, slots_per_group=LAG + 1), state_size=STATE_SIZE)

    def group_slots(builder: GroupBuilder) -> GroupSlots:
        checkpoints = GroupCheckpoints(
            store=store,
            builder=builder,
            states=GroupStates(folder),
            save_every=EVERY,
            saves_environments=saves_environments,
            trust=trust,
        )
        return GroupSlots(store, 0, checkpoints)

    alone, states = SteppedAlone(0), []
    with driving(store, group_slots, first_iteration=first_iteration) as driver:
        for iteration in range(ITERATIONS):
            is_rebuilt = not saves_environments and iteration > 0 and iteration % EVERY == 0
            expected = alone.next_slot(rebuild=is_rebuilt)
            if iteration < first_iteration:
                continue
            slot, step, _, at = driver.await_request(0)
            assert (step, at) == (0, iteration)
            assert store.group_rnn_state is not None
            states.append(store.group_rnn_state[0].copy())
            driver.play(0, STEPS + 1)
            assert driver.completed(1) == [slot]
            assert_holds(store, slot, expected)
            has_state = (iteration + 1) % EVERY == 0
            assert (folder / str(iteration + 1) / "group-0").exists() == has_state
            store.release(slot)
    return states


@pytest.mark.parametrize("saves_environments", [True, False])
@pytest.mark.parametrize("first_iteration", [EVERY, 2 * EVERY])
def test_a_resumed_worker_does_what_one_does_that_was_never_interrupted(
    tmp_path: Path, saves_environments: bool, first_iteration: int
) -> None:
    states = play(tmp_path, saves_environments=saves_environments)
    resumed = play(tmp_path, saves_environments=saves_environments, first_iteration=first_iteration)
    np.testing.assert_array_equal(resumed, states[first_iteration:])
    # The recurrent state is reset with rebuilt environments.
    assert not states[0].any()
    assert states[EVERY].any() == saves_environments
    assert states[0].shape == (ROWS, STATE_SIZE)


def test_a_resumed_worker_without_its_states_fails(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        play(tmp_path, saves_environments=True, first_iteration=EVERY)


def test_environments_that_another_user_pickled_are_restored_only_if_trusted(tmp_path: Path) -> None:
    whole = play(tmp_path, saves_environments=True)
    states = GroupStates(tmp_path)
    packed = states.read_packed(EVERY, 1)
    assert packed is not None
    environments, first, rnn_state, _, episodes = decode(packed[0])
    assert episodes is None, "one player plays"
    states.write_packed(EVERY, 0, encode((environments, first, rnn_state, None)))
    with pytest.raises(UntrustedError, match=r"is not trusted, and it holds pickled environments"):
        play(tmp_path, saves_environments=True, first_iteration=EVERY)
    states.write_packed(EVERY, 0, encode((environments, first, rnn_state, None)))
    resumed = play(tmp_path, saves_environments=True, first_iteration=EVERY, trust=True)
    np.testing.assert_array_equal(resumed, whole[EVERY:])

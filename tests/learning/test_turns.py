"""Turns of agents against a literal oracle for each agent."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from rollmill.learning.turns import turns_only
from rollmill.losses.gae import gae_numpy, recursion_cut_numpy
from rollmill.losses.vtrace import vtrace

DISCOUNT, LAMBDA = 0.9, 0.8


def random_rows(random: np.random.Generator) -> dict[str, Any]:
    """Arrays of a slot in which agents wait, die, are truncated, come late, and environments fail.

    ``own`` says in which episodes the policy plays the row.
    """
    steps, rows = int(random.integers(1, 14)), int(random.integers(1, 5))
    acts = random.random((steps + 1, rows)) < random.choice([0.15, 0.5, 0.9])
    terminated, truncated, valid = (np.zeros((steps, rows), bool) for _ in range(3))
    reset, own = np.zeros((2, steps + 1, rows), bool)
    for row in range(rows):
        is_new, mode, begins = bool(random.random() < 0.5), "plays", True
        for t in range(steps + 1):
            own[t, row] = random.random() < 0.5 if begins else own[t - 1, row]
            begins = False
            if mode == "final":  # the true final observation is shown, and the row is masked
                acts[t, row], mode, is_new, begins = True, "absent", True, True
                continue
            if mode == "absent":
                acts[t, row] = False
                mode = "plays" if random.random() < 0.6 else "absent"
                continue
            if acts[t, row]:
                reset[t, row], is_new = is_new, False
            if t == steps:
                continue
            fails = random.random() < 0.05
            valid[t, row] = acts[t, row] and not fails
            if fails:
                is_new = begins = True
            elif not is_new and random.random() < 0.3:
                is_cut = random.random() < 0.5
                (truncated if is_cut else terminated)[t, row] = True
                mode, is_new = ("final", False) if is_cut else (str(random.choice(["absent", "plays"])), True)
                begins = not is_cut
    return {
        "acts": acts,
        "own": own,
        "reset": reset,
        "terminated": terminated,
        "truncated": truncated,
        "valid": valid,
        "reward": random.normal(size=(steps, rows)).astype(np.float32),
        "value": random.normal(size=(steps + 1, rows)).astype(np.float32),
        "log_prob": random.normal(size=(steps, rows)).astype(np.float32),
        "target_log_prob": random.normal(size=(steps, rows)).astype(np.float32),
        "policy_version": np.arange(steps * rows, dtype=np.int32).reshape(steps, rows),
        "rnn_state": random.normal(size=(rows, 2)).astype(np.float32),
    }


class Turn(NamedTuple):
    step: int
    then: int | None
    reward: float
    end: str
    counts: bool


def turns_of(arrays: dict[str, Any], row: int) -> list[Turn]:
    """The turns that the policy plays for one agent, by walking over its steps."""
    steps = len(arrays["reward"])
    acting = [t for t in range(steps + 1) if arrays["acts"][t, row]]
    own = [t for t in acting if arrays["own"][t, row]]
    turns = []
    for place, t in enumerate(own):
        then = own[place + 1] if place + 1 < len(own) else None
        reward, end = 0.0, ""
        for k in range(t, min([k for k in acting if k > t], default=steps)):
            reward += float(arrays["reward"][k, row])
            if arrays["terminated"][k, row] or arrays["truncated"][k, row]:
                end = "terminated" if arrays["terminated"][k, row] else "truncated"
                break
        is_known = bool(end) or (then is not None and not arrays["reset"][then, row])
        turns.append(Turn(t, then, reward, end, t < steps and bool(arrays["valid"][t, row]) and is_known))
    return turns


def gae_of_turns(arrays: dict[str, Any], row: int) -> dict[int, float]:
    """Advantages of one agent, turn by turn, without arrays of time."""
    result: dict[int, float] = {}
    turns = turns_of(arrays, row)
    for place in reversed(range(len(turns))):
        turn = turns[place]
        if not turn.counts:
            continue
        bootstrap = 0.0 if turn.end == "terminated" else float(arrays["value"][turn.then, row])
        advantage = turn.reward + DISCOUNT * bootstrap - float(arrays["value"][turn.step, row])
        if not turn.end and turns[place + 1].counts:
            advantage += DISCOUNT * LAMBDA * result[turns[place + 1].step]
        result[turn.step] = advantage
    return result


def vtrace_of_turns(arrays: dict[str, Any], row: int) -> dict[int, tuple[float, float]]:
    """V-trace targets and advantages of one agent, turn by turn."""
    result: dict[int, tuple[float, float]] = {}
    errors: dict[int, float] = {}
    turns = turns_of(arrays, row)
    for place in reversed(range(len(turns))):
        turn = turns[place]
        if not turn.counts:
            continue
        t = turn.step
        value = float(arrays["value"][t, row])
        ratio = float(np.exp(arrays["target_log_prob"][t, row] - arrays["log_prob"][t, row]))
        discount = 0.0 if turn.end == "terminated" else DISCOUNT
        following = 0.0 if turn.end == "terminated" else float(arrays["value"][turn.then, row])
        delta = turn.reward + discount * following - value
        later = errors[turns[place + 1].step] if not turn.end and turns[place + 1].counts else 0.0
        errors[t] = min(1.0, ratio) * delta + discount * min(1.0, ratio) * LAMBDA * later
        result[t] = value + errors[t], min(1.0, ratio) * (delta + discount * LAMBDA * later)
    return result


@pytest.mark.slow
@pytest.mark.parametrize("several_players", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_advantages_of_turns_are_those_of_each_agent_alone(seed: int, several_players: bool) -> None:
    random = np.random.default_rng(seed)
    compared = 0
    for _ in range(300):
        arrays = random_rows(random)
        arrays["own"] |= not several_players
        arrays["valid"] &= arrays["own"][:-1]
        given = {name: array.copy() for name, array in arrays.items() if name != "own"}
        turns = turns_only(given, arrays["own"] if several_players else None)
        found = turns.arrays
        cut = recursion_cut_numpy(found["terminated"], found["truncated"], found["valid"])
        advantage, _ = gae_numpy(
            found["reward"],
            found["value"],
            found["terminated"],
            cut,
            found["valid"],
            discount=DISCOUNT,
            gae_lambda=LAMBDA,
        )
        of_vtrace = vtrace(
            *(torch.from_numpy(found[name]) for name in ("log_prob", "target_log_prob", "reward", "value")),
            discount=torch.from_numpy(np.where(found["terminated"], 0, DISCOUNT).astype(np.float32)),
            cut=torch.from_numpy(cut),
            valid=torch.from_numpy(found["valid"]),
            vtrace_lambda=LAMBDA,
        )
        for place, row in enumerate(turns.column):
            counted = np.flatnonzero(found["valid"][:, place])
            steps = turns.step[counted, place].tolist()
            wanted = gae_of_turns(arrays, int(row))
            assert steps == sorted(wanted)
            np.testing.assert_allclose(advantage[counted, place], [wanted[t] for t in steps], rtol=1e-4, atol=1e-5)
            targets = vtrace_of_turns(arrays, int(row))
            both = np.stack([of_vtrace.vs.numpy()[counted, place], of_vtrace.pg_advantage.numpy()[counted, place]], 1)
            np.testing.assert_allclose(
                both.reshape(-1, 2), np.array([targets[t] for t in steps]).reshape(-1, 2), rtol=1e-4, atol=1e-5
            )
            np.testing.assert_array_equal(
                found["policy_version"][counted, place], arrays["policy_version"][steps, int(row)]
            )
            np.testing.assert_array_equal(found["rnn_state"][place], arrays["rnn_state"][row])
            compared += len(steps)
        without = set(range(arrays["acts"].shape[1])) - set(turns.column.tolist())
        assert not (arrays["acts"] & arrays["own"])[:, sorted(without)].any()
    assert compared > 500


def test_a_batch_in_which_all_act_is_unchanged() -> None:
    arrays = random_rows(np.random.default_rng(3))
    del arrays["own"]
    steps, rows = arrays["reward"].shape
    arrays["acts"][:] = True
    arrays["reset"][:] = False
    for name in ("terminated", "truncated"):
        arrays[name][:] = False
    arrays["valid"][:] = True
    turns = turns_only({name: array.copy() for name, array in arrays.items()})
    assert turns.step.shape == (steps + 1, rows)
    for name, array in turns.arrays.items():
        np.testing.assert_array_equal(array, arrays[name], err_msg=name)


def test_a_batch_without_a_turn_is_empty() -> None:
    arrays = random_rows(np.random.default_rng(5))
    del arrays["own"]
    arrays["acts"][:] = False
    arrays["valid"][:] = False
    turns = turns_only(arrays)
    assert turns.step.shape[1] == 0
    assert not turns.arrays["valid"].size


def test_reward_terms_are_joined_as_rewards_are() -> None:
    random = np.random.default_rng(5)
    for _ in range(50):
        arrays = random_rows(random)
        del arrays["own"]
        arrays["reward_terms"] = np.stack([arrays["reward"], -2 * arrays["reward"]], axis=-1)
        turns = turns_only(arrays).arrays
        np.testing.assert_allclose(turns["reward_terms"][..., 0], turns["reward"], rtol=1e-6)
        np.testing.assert_allclose(turns["reward_terms"][..., 1], -2 * turns["reward"], rtol=1e-6)

"""Measurements and reward terms of Doom against a literal reading of the paper's scheme."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from rollmill.envs.doom_status import MEASUREMENTS, TERMS, Status
from rollmill.settings.presets import families

PREFERENCE = {0: 1, 1: 1, 2: 1, 3: 5, 4: 5, 5: 5, 6: 10, 7: 10}
# As Sample Factory 2.1.1 has them: for each unit of a gain, and of a loss.
SCHEME = {
    "FRAGCOUNT": (1.0, -1.5),
    "DEATHCOUNT": (-0.75, 0.75),
    "HITCOUNT": (0.01, -0.01),
    "DAMAGECOUNT": (0.003, -0.003),
    "HEALTH": (0.005, -0.003),
    "ARMOR": (0.005, -0.001),
    **{f"WEAPON{w}": (0.02 * p, -0.01 * p) for w, p in PREFERENCE.items()},
    **{f"AMMO{w}": (0.0002 * p, -0.0001 * p) for w, p in PREFERENCE.items()},
}


def random_game(random: np.random.Generator, steps: int) -> list[dict[str, float]]:
    """Variables of a player over an episode; counters only rise, and a death comes back to life."""
    now = dict.fromkeys(Status.VARIABLES, 0.0) | {"HEALTH": 100.0, "SELECTED_WEAPON": 2.0, "PLAYER_COUNT": 3.0}
    game = [dict(now)]
    for _ in range(steps):
        now["FRAGCOUNT"] += float(random.choice([0, 0, 0, 1, -1]))
        now["HITCOUNT"] += float(random.integers(0, 8))
        now["DAMAGECOUNT"] += float(random.integers(0, 400))
        now["ARMOR"] = float(random.integers(0, 50))
        now["HEALTH"] = float(random.integers(-20, 101))
        was_dead, now["DEAD"] = now["DEAD"], float(random.random() < 0.2)
        now["DEATHCOUNT"] += float(now["DEAD"] and not was_dead)
        now["SELECTED_WEAPON"] = float(random.choice([-1.0, 3.0, 3.0, 3.0, 3.0, 3.0]))
        now["SELECTED_WEAPON_AMMO"] = float(random.integers(0, 3))
        for weapon in PREFERENCE:
            now[f"WEAPON{weapon}"] = float(random.integers(0, 2))
            now[f"AMMO{weapon}"] = float(random.integers(-1, 200))
        game.append(dict(now))
    return game


def array(variables: dict[str, float], order: list[str]) -> np.ndarray[Any, Any]:
    return np.array([variables[name] for name in order])


@pytest.mark.parametrize("seed", range(5))
def test_the_weighed_terms_are_the_paper_s_reward(seed: int) -> None:
    random = np.random.default_rng(seed)
    order, game = Status.VARIABLES, random_game(random, 60)
    status, weights = Status(), families.VIZDOOM_MATCH["learner.reward_weights"]
    assert isinstance(weights, dict)
    assert set(weights) == set(TERMS)
    status.begin(array(game[0], order))
    held: list[int] = []
    for step, (before, now) in enumerate(itertools.pairwise(game), start=1):
        frags, terms = status.take(array(now, order), is_last=step == 60)
        assert frags == now["FRAGCOUNT"] - before["FRAGCOUNT"]
        assert all(value >= 0 for value in terms.values())
        weapon = int(max(0.0, now["SELECTED_WEAPON"]))
        held = [*held, weapon][-5:]
        found = frags + sum(weights[name] * value for name, value in terms.items())
        expected = frags  # which counts at every step
        if step < 60 and not (before["DEAD"] and not now["DEAD"]):
            expected = 0.0
            for name, (up, down) in SCHEME.items():
                change = now[name] - before[name]
                if name == "HEALTH":  # Sample Factory's wrapper of the measurements cuts it off below zero.
                    change = max(now[name], 0.0) - max(before[name], 0.0)
                change = min(change, {"DAMAGECOUNT": 200.0, "HITCOUNT": 5.0}.get(name, change))
                expected += change * up if change > 0 else -change * down
            if held == [weapon] * 5 and now["SELECTED_WEAPON_AMMO"] > 0:
                expected += 0.0002 * PREFERENCE[weapon]
        assert found == pytest.approx(expected, abs=1e-9)
    assert status.totals["deaths"] == game[-1]["DEATHCOUNT"]
    assert status.totals["frags"] == game[-1]["FRAGCOUNT"]


def test_measurements_are_small_numbers() -> None:
    order = Status.VARIABLES
    variables = dict.fromkeys(order, 0.0) | {
        "SELECTED_WEAPON": 3.0,
        "SELECTED_WEAPON_AMMO": 300.0,
        "HEALTH": -5.0,
        "ARMOR": 60.0,
        "USER2": 20.0,
        "ATTACK_READY": 1.0,
        "PLAYER_COUNT": 5.0,
        "WEAPON3": 1.0,
        "AMMO3": 30.0,
        "AMMO4": 999.0,
        "AMMO5": -1.0,
    }
    status = Status()
    status.begin(array(variables, order))
    found = status.measurements()
    assert found.shape == (MEASUREMENTS,)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[:7], [3.0, 5.0, 0.0, 2.0, 2.0, 1.0, 1.0])
    np.testing.assert_allclose(found[7:15], [0, 0, 0, 1, 0, 0, 0, 0])
    np.testing.assert_allclose(found[15:], [0, 0, 0, 2, 5, 0, 0, 0])

"""What a Doom player knows of itself: measurements for the network, and the terms of the paper's reward.

Source of measurements and terms: Petrenko et al. 2020 (https://arxiv.org/abs/2006.11751, section A.3.1) and Sample
Factory 2.1.1. There a step pays weighed changes of the game's variables; here the changes are reward terms, which each
policy weighs for itself (``learner.reward_weights``).
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

NUM_WEAPONS = 8
MEASUREMENTS = 7 + 2 * NUM_WEAPONS
"""Length of the vector: weapon in hand, its ammunition, health, armor, kills, whether it can shoot, players, and for
each weapon whether the player has it and its ammunition."""

_OWN = (
    *("SELECTED_WEAPON", "SELECTED_WEAPON_AMMO", "HEALTH", "ARMOR", "USER2", "ATTACK_READY", "PLAYER_COUNT"),
    *("FRAGCOUNT", "DEATHCOUNT", "HITCOUNT", "DAMAGECOUNT", "DEAD"),
    *(f"WEAPON{weapon}" for weapon in range(NUM_WEAPONS)),
    *(f"AMMO{weapon}" for weapon in range(NUM_WEAPONS)),
)
_PLACE = {name: place for place, name in enumerate(_OWN)}
_WEAPONS = slice(_PLACE["WEAPON0"], _PLACE["WEAPON0"] + NUM_WEAPONS)
_AMMO = slice(_PLACE["AMMO0"], _PLACE["AMMO0"] + NUM_WEAPONS)
# Divisors and upper bounds of the first seven measurements, and of ammunition.
_SCALE = np.array([1, 15, 30, 30, 10, 1, 5], np.float64)
_MOST_AMMO = 5.0
# How much better than the pistol the weapons are, by slot.
_PREFERENCE = np.array([1, 1, 1, 5, 5, 5, 10, 10], np.float64)
_MOST_DAMAGE, _MOST_HITS = 200.0, 5.0
_HELD_STEPS = 5

TERMS = (
    *("frag_loss", "death", "hit", "damage", "health_gain", "health_loss", "armor_gain", "armor_loss"),
    *("weapon_gain", "weapon_loss", "ammo_gain", "ammo_loss", "weapon_held"),
)
"""Changes of a step, none negative. Gains and losses of weapons and ammunition are multiplied by 1, 5 or 10 for better
weapons; ``weapon_held`` is this factor while a loaded weapon stays in hand for five steps."""


class Status:
    """The variables of a player over an episode, which the engine gives in the order of ``VARIABLES``."""

    VARIABLES = _OWN

    def __init__(self) -> None:
        self._now: NDArray[np.float64] = np.zeros(len(_OWN))
        self._first = self._now
        self._held: deque[int] = deque(maxlen=_HELD_STEPS)

    def begin(self, variables: NDArray[Any]) -> None:
        """Take the variables of an episode's first observation."""
        self._first = self._now = self._own(variables)
        self._held.clear()

    def take(self, variables: NDArray[Any], *, is_last: bool) -> tuple[float, dict[str, float]]:
        """Take the variables after a step.

        Args:
            variables: As the engine gives them.
            is_last: Whether the episode ends with the step, whose changes do not count.

        Returns:
            The change of the number of frags, and the reward terms.
        """
        before, self._now = self._now, self._own(variables)
        now = self._now
        frags = float(now[_PLACE["FRAGCOUNT"]] - before[_PLACE["FRAGCOUNT"]])
        weapon = int(max(0.0, now[0]))
        self._held.append(weapon)
        # The changes of coming back to life are no merit.
        if is_last or (before[_PLACE["DEAD"]] and not now[_PLACE["DEAD"]]):
            return frags, dict.fromkeys(TERMS, 0.0)
        change = now - before
        gain, loss = np.maximum(change, 0.0), np.maximum(-change, 0.0)
        is_held = len(self._held) == _HELD_STEPS and len(set(self._held)) == 1 and now[1] > 0
        place = _PLACE
        values = (
            max(0.0, -frags),
            gain[place["DEATHCOUNT"]],
            min(gain[place["HITCOUNT"]], _MOST_HITS),
            min(gain[place["DAMAGECOUNT"]], _MOST_DAMAGE),
            gain[place["HEALTH"]],
            loss[place["HEALTH"]],
            gain[place["ARMOR"]],
            loss[place["ARMOR"]],
            gain[_WEAPONS] @ _PREFERENCE,
            loss[_WEAPONS] @ _PREFERENCE,
            gain[_AMMO] @ _PREFERENCE,
            loss[_AMMO] @ _PREFERENCE,
            _PREFERENCE[min(weapon, NUM_WEAPONS - 1)] if is_held else 0.0,
        )
        return frags, dict(zip(TERMS, map(float, values), strict=True))

    def _own(self, variables: NDArray[Any]) -> NDArray[np.float64]:
        """Return the variables as they count."""
        own = np.array(variables, np.float64)
        # The engine counts on below zero, but a rocket that kills costs no more than what was left.
        own[_PLACE["HEALTH"]] = max(0.0, own[_PLACE["HEALTH"]])
        return own

    def measurements(self) -> NDArray[np.float32]:
        """Return the vector for the network, float32 ``[23]``, of numbers between 0 and about 10."""
        now, result = self._now, np.empty(MEASUREMENTS, np.float32)
        result[:7] = np.maximum(now[:7], 0.0) / _SCALE
        result[1] = min(float(result[1]), _MOST_AMMO)
        result[7 : 7 + NUM_WEAPONS] = np.maximum(now[_WEAPONS], 0.0)
        result[7 + NUM_WEAPONS :] = np.clip(now[_AMMO] / _SCALE[1], 0.0, _MOST_AMMO)
        return result

    @property
    def totals(self) -> dict[str, float]:
        """Frags, deaths and kills of monsters since the episode's first observation."""
        change = self._now - self._first
        names = {"frags": "FRAGCOUNT", "deaths": "DEATHCOUNT", "kills": "USER2"}
        return {name: float(change[_PLACE[variable]]) for name, variable in names.items()}

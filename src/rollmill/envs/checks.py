"""What is looked at after every group step: finite numbers, and masks that allow something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rollmill.envs.errors import InvalidActionMask, InvalidReward, NonFiniteObservation
from rollmill.envs.spaces import ACTION_MASK, ObservationCodec
from rollmill.envs.views import Array, ObservationView
from rollmill.specs import ActionSpec

__all__ = ["RowChecks", "as_number"]


def as_number(reward: Any) -> float:
    """A reward as an environment gave it: a number, or an array of one element.

    Raises:
        TypeError, ValueError: It is neither.
    """
    return float(np.asarray(reward).item())


class RowChecks:
    """Checks of one group; every message names the environment, the step and the entry."""

    def __init__(
        self, name: str, codec: ObservationCodec, action: ActionSpec, first_index: int, check_finite: bool
    ) -> None:
        """Remember what to look at.

        Args:
            name: The environment's name, for messages.
            codec: Knows which observation entries are floats.
            action: The heads that a mask covers.
            first_index: Index of the group's first environment in the whole run.
            check_finite: Whether floats are looked at.
        """
        self._name = name
        self._first = first_index
        self._float_names: Sequence[str] = codec.float_names if check_finite else ()
        self._check_finite = check_finite
        ends = np.cumsum(action.categorical_sizes, dtype=np.int64).tolist()
        self._head_slices = [slice(end - n, end) for end, n in zip(ends, action.categorical_sizes, strict=True)]
        self._mask_size = action.mask_size

    def observation(self, into: ObservationView, step: int) -> None:
        """Raise if a float entry holds NaN or infinity.

        Raises:
            NonFiniteObservation: Names the environment, the step and the entry.
        """
        for key in self._float_names:
            values = into.observation[key]
            if not np.isfinite(values).all():
                self._report(values, step, f"observation {key!r}")

    def reward(self, reward: Array, step: int) -> None:
        """Raise if a reward is NaN or infinite.

        Raises:
            NonFiniteObservation: Names the environment and the step.
        """
        if self._check_finite and not np.isfinite(reward).all():
            self._report(reward, step, "reward")

    def _report(self, values: Array, step: int, what: str) -> None:
        bad = ~np.isfinite(values.reshape(len(values), -1))
        row = int(bad.any(axis=1).argmax())
        raise NonFiniteObservation(
            f"environment {self._first + row} of {self._name} gave {int(bad[row].sum())} non-finite value(s) as {what} "
            f"at group step {step} (first: {values.reshape(len(values), -1)[row][bad[row]][0]}); only finite numbers "
            "can be learned from: mend the environment, or set env.check_finite to false to let them pass"
        )

    def read_mask(self, raw: Any, row: int) -> Array:
        """One environment's mask as bool ``[M]``; a tuple of one mask for each head is joined.

        Raises:
            InvalidActionMask: When it has another size than the action's heads together.
        """
        parts = raw if isinstance(raw, (tuple, list)) and np.ndim(raw[0]) else (raw,)
        mask = np.concatenate([np.asarray(part).ravel() for part in parts]) if len(parts) > 1 else np.ravel(parts[0])
        if mask.size != self._mask_size:
            raise InvalidActionMask(
                f"environment {self._first + row} of {self._name} gave an action mask of {mask.size} entries: "
                f"{self._mask_size} are needed, one for each choice of each categorical head"
            )
        return mask.astype(bool)

    def relax(self, mask: Array, rows: Sequence[int]) -> None:
        """Lets heads of which an ended episode allows nothing allow all: what its rows do next is ignored.

        What a final observation does allow stays: a truncated episode's value is bootstrapped over that.

        Args:
            mask: bool ``[B, M]``, changed in place.
            rows: Whose episodes have ended.
        """
        for columns in self._head_slices:
            part = mask[rows, columns]
            part[~part.any(axis=1)] = True
            mask[rows, columns] = part

    def missing_mask(self, row: int) -> InvalidActionMask:
        """The error for a mask that was given before and is not now."""
        return InvalidActionMask(
            f"environment {self._first + row} of {self._name} gave info[{ACTION_MASK!r}] before and does not now: "
            "give it with every reset and every step"
        )

    def rewards(self, rewards: Sequence[Any], step: int) -> Array:
        """Rewards as the environments gave them, as float64 ``[B]``; an array of one element counts as a number.

        Raises:
            InvalidReward: One is no number; names the environment and the step.
        """
        numbers = np.empty(len(rewards))
        for row, reward in enumerate(rewards):
            try:
                numbers[row] = as_number(reward)
            except (TypeError, ValueError) as error:
                raise InvalidReward(
                    f"environment {self._first + row} of {self._name} gave the reward {reward!r} at group step {step}: "
                    "one real number is needed"
                ) from error
        return numbers

    def masks(self, mask: Array, step: int) -> None:
        """Raise if a row allows no choice of some head (those of rows whose next action is ignored are relaxed).

        Args:
            mask: bool ``[B, M]``.
            step: For the message.

        Raises:
            InvalidActionMask: Names the environment, the step and the head.
        """
        for head, columns in enumerate(self._head_slices):
            bad = ~mask[:, columns].any(axis=1)
            if bad.any():
                raise InvalidActionMask(
                    f"environment {self._first + int(bad.argmax())} of {self._name} allows no choice of action head "
                    f"{head} at group step {step}: at least one entry must be True while the episode goes on"
                )

"""What is looked at after every group step: finite numbers, and masks that allow something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rollmill.envs.errors import InvalidActionMask, InvalidReward, NonFiniteObservation
from rollmill.envs.spaces import ACTION_MASK, ObservationCodec
from rollmill.envs.views import Array, ObservationView
from rollmill.specs import ActionSpec

__all__ = ["RowChecks", "as_number", "invalid_reward", "shown"]


def as_number(reward: Any) -> float:
    """A reward as an environment gave it: a number, or an array of one element.

    Raises:
        TypeError, ValueError, OverflowError: It is neither, or a number that no float64 holds.
    """
    number = np.asarray(reward).item()
    if isinstance(number, str | bytes | complex):  # float() would parse text
        raise TypeError(f"it is of type {type(number).__name__}")
    return float(number)


def invalid_reward(whose: str, reward: Any, when: str) -> InvalidReward:
    """The error for a reward that is no number.

    Args:
        whose: For the message, "environment 3 of gym/CartPole-v1".
        reward: As it was given.
        when: For the message, " at group step 5".
    """
    return InvalidReward(
        f"{whose} gave the reward {shown(reward)} of type {type(reward).__name__}{when}: one real number that float32 "
        "holds is needed (a float, an integer, or an array of one of them); return such a number from its step"
    )


def shown(value: Any) -> str:
    """A value for a message, cut short."""
    try:
        text = repr(value)
    except Exception:  # An integer of more than 4,300 digits, or whatever a class of the user's raises.
        return "(too long to be shown)" if isinstance(value, int) else "(without a repr)"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


# What needs no second look in a list of rewards. An assignment takes others, too, but parses text.
_PLAIN_NUMBERS = frozenset({float, int, bool, np.float64, np.float32, np.bool_, np.int64, np.int32})
_LONGEST_SHOWN = 80


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

    def reward(self, reward: Array, step: int, given: Sequence[Any] | Array = ()) -> None:
        """Raise if a reward is NaN or infinite.

        Args:
            reward: float32 ``[B]``, as it is stored.
            step: For the message.
            given: As the environments gave them: what is finite there was too large for float32.

        Raises:
            NonFiniteObservation: Names the environment and the step.
            InvalidReward: It was too large.
        """
        if self._check_finite and not np.isfinite(reward).all():
            row = int((~np.isfinite(reward)).argmax())
            if len(given) and np.isfinite(as_number(given[row])):
                raise self._invalid_reward(row, given[row], step)
            self._report(reward, step, "reward")

    def _invalid_reward(self, row: int, reward: Any, step: int) -> InvalidReward:
        return invalid_reward(f"environment {self._first + row} of {self._name}", reward, f" at group step {step}")

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

    def rewards(self, rewards: Sequence[Any], into: Array, step: int) -> None:
        """Writes rewards as the environments gave them; an array of one element counts as a number.

        Args:
            rewards: One for each row.
            into: float32 ``[B]``.
            step: For the message.

        Raises:
            InvalidReward: One is no number; names the environment and the step.
        """
        if _PLAIN_NUMBERS.issuperset(map(type, rewards)):
            try:
                into[:] = rewards
                return
            except OverflowError:  # an integer that no float64 holds
                pass
        for row, reward in enumerate(rewards):
            try:
                into[row] = as_number(reward)
            except (TypeError, ValueError, OverflowError) as error:
                raise self._invalid_reward(row, reward, step) from error

    def reward_batch(self, rewards: Any, into: Array, step: int) -> None:
        """Writes the rewards of a native vector, an array ``[B]``.

        Raises:
            InvalidReward: It has another shape, or one of them is no number.
        """
        batch = rewards if type(rewards) is np.ndarray else np.asarray(rewards, dtype=_object_if_ragged(rewards))
        if batch.shape != into.shape:
            raise InvalidReward(
                f"{self._name} gave rewards of shape {batch.shape} at group step {step}: shape {into.shape} is needed, "
                "one real number for each row"
            )
        if batch.dtype.kind in "biuf":
            np.copyto(into, batch, casting="unsafe")
        else:
            self.rewards(batch.tolist(), into, step)

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


def _object_if_ragged(rewards: Any) -> Any:
    """The dtype to make an array of what is none: its own, or Python objects where its parts differ in shape."""
    try:
        return np.asarray(rewards).dtype
    except ValueError:
        return object

"""Checks after every group step: finite numbers, and masks with at least one allowed choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rollmill.envs.errors import InvalidActionMask, InvalidReward, NonFiniteObservation, UnsupportedSpace
from rollmill.envs.spaces import ACTION_MASK, ObservationCodec
from rollmill.envs.views import Array, ObservationView
from rollmill.specs import ActionSpec


def as_number(reward: Any) -> float:
    """Convert a reward, a number or an array of one element, to a float.

    Raises:
        TypeError, ValueError, OverflowError: It is neither, or too large for float64.
    """
    number = np.asarray(reward).item()
    if isinstance(number, str | bytes | complex):  # float() would parse text
        raise TypeError(f"it is of type {type(number).__name__}")
    return float(number)


def invalid_reward(whose: str, reward: Any, when: str) -> InvalidReward:
    """Return the error for an invalid reward.

    Args:
        whose: Its environment for the message, such as "environment 3 of gym/CartPole-v1".
        reward: The given value.
        when: Its time for the message, such as " at group step 5".
    """
    return InvalidReward(
        f"{whose} gave the reward {shown(reward)} of type {type(reward).__name__}{when}: one real number that float32 "
        "holds is needed (a float, an integer, or an array of one of them); return such a number from its step"
    )


def check_fit(codec: ObservationCodec, observation: Any, whose: str, when: str) -> None:
    """Raise if one environment's observation does not fit its space.

    Args:
        codec: Codec of the space.
        observation: As the environment returned it.
        whose: As in :func:`invalid_reward`.
        when: As in :func:`invalid_reward`.

    Raises:
        UnsupportedSpace: Names the environment, the time and the entry.
    """
    try:
        codec.check(observation)
    except UnsupportedSpace as error:
        raise _misfit(whose, error, when) from None


def shown(value: Any) -> str:
    """Format a value for a message, truncated."""
    try:
        text = repr(value)
    except Exception:  # An integer of more than 4,300 digits, or any error in a user's class.
        return "(too long to show)" if isinstance(value, int) else "(without a repr)"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


# Types of rewards that are valid without conversion. A plain assignment would also parse text.
_PLAIN_NUMBERS = frozenset({float, int, bool, np.float64, np.float32, np.bool_, np.int64, np.int32})
_LONGEST_SHOWN = 80


class RowChecks:
    """Checks of one group; every message names the environment, the step and the entry."""

    def __init__(
        self,
        name: str,
        codec: ObservationCodec,
        action: ActionSpec,
        first_index: int,
        check_finite: bool,
        agents: Sequence[str] = (),
    ) -> None:
        """Prepare the checks of a group.

        Args:
            name: The environment's name, for messages.
            codec: Codec of the observation.
            action: The heads that a mask covers.
            first_index: Index of the group's first environment in the whole run.
            check_finite: Whether to check floats.
            agents: Names of an environment's agents, each of which is a row.
        """
        self._name = name
        self._codec = codec
        self._first = first_index
        self._agents = agents
        self._float_names: Sequence[str] = codec.float_names if check_finite else ()
        self._check_finite = check_finite
        ends = np.cumsum(action.categorical_sizes, dtype=np.int64).tolist()
        self._head_slices = [slice(end - n, end) for end, n in zip(ends, action.categorical_sizes, strict=True)]
        self._mask_size = action.mask_size

    def write_row(self, observation: Any, row: int, into: ObservationView, step: int) -> None:
        """Write the observation of one row.

        Args:
            observation: As its environment returned it.
            row: Row of the group.
            into: Where to write it.
            step: Group step, for the message.

        Raises:
            UnsupportedSpace: It does not fit its space; names the environment, the step and the entry.
        """
        try:
            self._codec.write_row(observation, row, into.observation)
        except UnsupportedSpace as error:
            raise _misfit(self._whose(row), error, f" at group step {step}") from None

    def write_batch(self, observation: Any, into: ObservationView, step: int) -> None:
        """Write the observations of all rows, as a native vector returned them.

        Args:
            observation: With a leading axis ``B``.
            into: Where to write them.
            step: Group step, for the message.

        Raises:
            UnsupportedSpace: They do not fit their space; names the vector, the step and the entry.
        """
        try:
            self._codec.write(observation, into.observation)
        except UnsupportedSpace as error:
            raise _misfit(self._name, error, f" at group step {step}") from None

    def observation(self, into: ObservationView, step: int) -> None:
        """Raise if a float entry holds NaN or infinity.

        Raises:
            NonFiniteObservation: Names the environment, the step and the entry.
        """
        for key in self._float_names:
            values = into.observation[key]
            if np.isfinite(values).all():
                continue
            if into.acts is not None:
                # Rows that do not act were not written, and may hold anything.
                values = np.where(into.acts.reshape(-1, *[1] * (values.ndim - 1)), values, 0)
            if not np.isfinite(values).all():
                self._report(values, step, f"observation {key!r}")

    def reward(self, reward: Array, step: int, given: Sequence[Any] | Array = ()) -> None:
        """Raise if a reward is NaN or infinite.

        Args:
            reward: float32 ``[B]``, as it is stored.
            step: Group step, for the message.
            given: The environments' own values: finite ones were too large for float32.

        Raises:
            NonFiniteObservation: Names the environment and the step.
            InvalidReward: A reward was too large for float32.
        """
        if self._check_finite and not np.isfinite(reward).all():
            row = int((~np.isfinite(reward)).argmax())
            if len(given) and np.isfinite(as_number(given[row])):
                raise self._invalid_reward(row, given[row], step)
            self._report(reward, step, "reward")

    def _whose(self, row: int) -> str:
        if not self._agents:
            return f"environment {self._first + row} of {self._name}"
        env, agent = divmod(row, len(self._agents))
        return f"agent {self._agents[agent]!r} of environment {self._first + env} of {self._name}"

    def _invalid_reward(self, row: int, reward: Any, step: int) -> InvalidReward:
        return invalid_reward(self._whose(row), reward, f" at group step {step}")

    def _report(self, values: Array, step: int, what: str) -> None:
        bad = ~np.isfinite(values.reshape(len(values), -1))
        row = int(bad.any(axis=1).argmax())
        raise NonFiniteObservation(
            f"{self._whose(row)} gave {int(bad[row].sum())} non-finite value(s) as {what} "
            f"at group step {step} (first: {values.reshape(len(values), -1)[row][bad[row]][0]}); training needs "
            "finite numbers: fix the environment, or set env.check_finite to false to accept them"
        )

    def read_mask(self, raw: Any, row: int) -> Array:
        """Convert one environment's mask to bool ``[M]``; a tuple of one mask per head is concatenated.

        Raises:
            InvalidActionMask: Its size differs from the total size of the action's heads.
        """
        parts = raw if isinstance(raw, (tuple, list)) and raw and np.ndim(raw[0]) else (raw,)
        mask = np.concatenate([np.asarray(part).ravel() for part in parts]) if len(parts) > 1 else np.ravel(parts[0])
        if mask.size != self._mask_size:
            raise InvalidActionMask(
                f"{self._whose(row)} gave an action mask of {mask.size} entries: "
                f"{self._mask_size} are needed, one for each choice of each categorical head"
            )
        return mask.astype(bool)

    def relax(self, mask: Array, rows: Sequence[int]) -> None:
        """Allow every choice of heads that an ended episode fully forbids: the next actions of its rows are ignored.

        Choices that a final observation allows are kept: a truncated episode's value is bootstrapped over them.

        Args:
            mask: bool ``[B, M]``, changed in place.
            rows: Rows whose episodes have ended.
        """
        for columns in self._head_slices:
            part = mask[rows, columns]
            part[~part.any(axis=1)] = True
            mask[rows, columns] = part

    def missing_mask(self, row: int) -> InvalidActionMask:
        """Return the error for a mask that is suddenly missing."""
        return InvalidActionMask(
            f"{self._whose(row)} gave info[{ACTION_MASK!r}] before and does not now: "
            "give it with every reset and every step"
        )

    def rewards(self, rewards: Sequence[Any], into: Array, step: int) -> None:
        """Write the environments' rewards; an array of one element counts as a number.

        Args:
            rewards: One for each row.
            into: float32 ``[B]``.
            step: Group step, for the message.

        Raises:
            InvalidReward: A reward is not a number; names the environment and the step.
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
        """Write the rewards of a native vector, an array ``[B]``.

        Raises:
            InvalidReward: The shape is wrong, or a reward is not a number.
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
            step: Group step, for the message.

        Raises:
            InvalidActionMask: Names the environment, the step and the head.
        """
        for head, columns in enumerate(self._head_slices):
            bad = ~mask[:, columns].any(axis=1)
            if bad.any():
                raise InvalidActionMask(
                    f"{self._whose(int(bad.argmax()))} allows no choice of action head {head} at group step {step}: at "
                    "least one entry must be True before the episode ends"
                )


def _misfit(whose: str, error: UnsupportedSpace, when: str) -> UnsupportedSpace:
    return UnsupportedSpace(f"{whose}{when}: {error}")


def _object_if_ragged(rewards: Any) -> Any:
    """Dtype for ``np.asarray``: inferred (None), or object if the parts differ in shape."""
    try:
        return np.asarray(rewards).dtype
    except ValueError:
        return object

"""Schedules of the learning rate and of loss coefficients.

The learner reads a schedule's value once a batch, before the batch's first SGD step, and reports the mean KL divergence
of the last step's minibatch afterwards. A schedule depends on *agent steps consumed by the learner*: valid samples,
each counted once, however many epochs use it. A linear one also depends on the clock if a time limit ends the run, but
never in lockstep or with several ranks, whose clocks differ.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rollmill.learning.config import KlSchedule, OptimiserConfig


class Schedule(Protocol):
    """A value that may change while the learner consumes agent steps.

    ``load_state_dict`` accepts the ``state_dict`` of *any* schedule: a run that is resumed with another kind of
    schedule starts that schedule from its initial value.
    """

    def value(self, agent_steps: int) -> float:
        """Return the value to use after ``agent_steps`` agent steps have been consumed."""
        ...

    def update(self, kl: float) -> None:
        """Observe the mean KL divergence, in nats, from the policy that sampled a batch, in its last minibatch."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint: plain numbers and strings."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state``."""
        ...


@dataclass(frozen=True)
class Constant:
    """A constant value."""

    initial: float

    def value(self, agent_steps: int) -> float:
        """Return the initial value."""
        return self.initial

    def update(self, kl: float) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return the kind."""
        return {"kind": "constant"}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Linear:
    """A line from ``initial`` at the beginning of a run to ``final`` at its end; constant afterwards.

    The position is the larger of the shares of agent steps and of seconds, which reaches 1 when either limit ends the
    run. Checkpoints store agent steps and seconds, so a resumed run continues at its position; with a larger limit it
    continues on the new line.

    Attributes:
        initial: Value at 0 agent steps.
        total_agent_steps: Length of the run in agent steps (frames / frameskip), at least 1.
        final: Value at the end.
        share_of_time: Returns the elapsed share of the time limit, in [0, 1]; None without a time limit.
    """

    initial: float
    total_agent_steps: int
    final: float = 0.0
    share_of_time: Callable[[], float] | None = None

    def __post_init__(self) -> None:
        """Check the length of the run.

        Raises:
            ValueError: ``total_agent_steps`` is below 1.
        """
        if self.total_agent_steps < 1:
            raise ValueError(
                f"a linear schedule over {self.total_agent_steps} agent steps: it needs the run's total, at least 1; "
                f"set the total steps, or use schedule='constant'"
            )

    def value(self, agent_steps: int) -> float:
        """Return the value on the line.

        Raises:
            ValueError: ``agent_steps`` is negative.
        """
        if agent_steps < 0:
            raise ValueError(f"agent_steps={agent_steps}: give the agent steps consumed so far, 0 or more")
        if agent_steps >= self.total_agent_steps:
            return self.final  # exact: a weighted sum may have a rounding error
        progress = agent_steps / self.total_agent_steps
        if self.share_of_time is not None:
            progress = max(progress, self.share_of_time())
        return self.initial * (1.0 - progress) + self.final * progress

    def update(self, kl: float) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return the kind; the learner's counter and clock hold the position."""
        return {"kind": "linear"}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: the learner's counter and clock hold the position."""


@dataclass(frozen=True)
class Points:
    """Linear interpolation between points; constant before the first and after the last.

    Attributes:
        points: (agent steps, value), with increasing steps; at least one.
    """

    points: tuple[tuple[int, float], ...]

    def value(self, agent_steps: int) -> float:
        """Return the interpolated value at ``agent_steps``."""
        after = bisect_right(self.points, agent_steps, key=lambda point: point[0])
        if after == 0:
            return self.points[0][1]
        if after == len(self.points):
            return self.points[-1][1]
        (left, low), (right, high) = self.points[after - 1 : after + 1]
        progress = (agent_steps - left) / (right - left)
        return low * (1.0 - progress) + high * progress

    def update(self, kl: float) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return the kind; the learner's counter holds the position."""
        return {"kind": "points"}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: the learner's counter holds the position."""


class KLAdaptive:
    """Divides the value after large policy changes and multiplies it after small ones.

    Source: the rule of rsl_rl (Rudin et al. 2022, arXiv:2109.11978, appendix) and of Sample Factory's
    ``kl_adaptive_minibatch``: above ``2 target`` divide by 1.5, below ``target / 2`` multiply by 1.5, within bounds.
    Applied once a batch, to the divergence in its last minibatch, because one per SGD step would need a host sync each.
    As in rsl_rl, a divergence of exactly 0 (no update) changes nothing; slightly negative estimates count as small.

    Args:
        initial: Starting value, within the bounds.
        target: KL divergence to hold, in nats.
        minimum: Lower bound of the value.
        maximum: Upper bound of the value.

    Raises:
        ValueError: The target is not positive, or the initial value is outside the bounds.
    """

    FACTOR = 1.5
    TOLERANCE = 2.0

    def __init__(self, initial: float, *, target: float, minimum: float, maximum: float) -> None:
        if not target > 0:
            raise ValueError(f"kl_target={target}: give a positive KL divergence in nats, such as 0.01")
        if not 0 < minimum <= initial <= maximum:
            raise ValueError(
                f"initial value {initial} with bounds {minimum} .. {maximum}: need 0 < minimum <= initial <= maximum"
            )
        self._target = target
        self._minimum = minimum
        self._maximum = maximum
        self._value = initial

    def value(self, agent_steps: int) -> float:
        """Return the value after the last update."""
        return self._value

    def update(self, kl: float) -> None:
        """Update the value by the rule above.

        Raises:
            ValueError: ``kl`` is not a number.
        """
        # The estimate may overflow while the loss is finite.
        if math.isnan(kl):
            raise ValueError(
                f"the KL divergence of the last batch is {kl}: the policy's outputs are not finite; lower the learning "
                f"rate or max_grad_norm, and look for non-finite observations"
            )
        if kl > self._target * self.TOLERANCE:
            self._value = max(self._value / self.FACTOR, self._minimum)
        elif kl < self._target / self.TOLERANCE and kl != 0.0:
            self._value = min(self._value * self.FACTOR, self._maximum)

    def state_dict(self) -> dict[str, Any]:
        """Return the kind and the current value."""
        return {"kind": "kl", "value": self._value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the value of a KL-adaptive schedule, within this one's bounds."""
        if state["kind"] == "kl":
            self._value = min(max(float(state["value"]), self._minimum), self._maximum)


def learning_rate_schedule(
    config: OptimiserConfig, total_agent_steps: int, share_of_time: Callable[[], float] | None = None
) -> Schedule:
    """Build the learning rate's schedule.

    Args:
        config: Its ``schedule``, ``learning_rate`` and the KL rule's target and bounds are used.
        total_agent_steps: Length of the whole run, in agent steps, not frames.
        share_of_time: See :class:`Linear`.

    Raises:
        ValueError: ``schedule="linear"`` and the total is below 1.
    """
    schedule = config.schedule
    if isinstance(schedule, KlSchedule):
        return KLAdaptive(
            config.learning_rate,
            target=schedule.kl_target,
            minimum=schedule.min_learning_rate,
            maximum=schedule.max_learning_rate,
        )
    if schedule.points:
        return Points(schedule.points)
    return coefficient_schedule(schedule.name, config.learning_rate, total_agent_steps, share_of_time)


def coefficient_schedule(
    kind: str, initial: float, total_agent_steps: int, share_of_time: Callable[[], float] | None = None
) -> Schedule:
    """Build the schedule of a loss coefficient, such as ``entropy_coef`` or ``clip_range``.

    Args:
        kind: ``"constant"``, or ``"linear"`` to 0 over the run.
        initial: The coefficient at the start.
        total_agent_steps: Length of the whole run in agent steps; used only by ``"linear"``.
        share_of_time: See :class:`Linear`.

    Raises:
        ValueError: ``kind`` is ``"linear"`` and the total is below 1.
    """
    if kind == "linear":
        return Linear(initial, total_agent_steps, share_of_time=share_of_time)
    return Constant(initial)

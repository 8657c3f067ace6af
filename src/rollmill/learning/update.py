"""One SGD step of any algorithm: its objectives in order, over the parts of a minibatch, then its target networks.

A part runs through the network at once. Gradients of parts add up, so each loss is a sum divided by the size of the
whole minibatch, or, for a replay, a mean over the only part.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rollmill.algorithms.base import Algorithm, Loss, Objective
from rollmill.algorithms.batches import Batch, OnPolicyBatch, SequenceBatch
from rollmill.learning.collective import Alone, Collective
from rollmill.learning.config import Adam, OptimiserConfig
from rollmill.learning.fast_path import PLAIN, FastPath
from rollmill.learning.live_numbers import LiveNumbers
from rollmill.learning.optimisers import (
    NonFiniteGuard,
    clip_grad_norm_,
    load_optimiser_state,
    make_optimiser,
    optimiser_state,
    set_betas,
    set_learning_rate,
)
from rollmill.models.convolutions import centred_layers, observing_pixel_levels, set_channels_last
from rollmill.storage.gradients import MOST_STATISTICS


def _never() -> bool:
    return False


class Step(NamedTuple):
    """Result of an SGD step.

    Attributes:
        td_error: float32 ``[N]``: absolute temporal differences of the first objective that has any; None without.
        moments: Sums of advantages over this rank's parts of the minibatch, see
            :class:`rollmill.algorithms.base.Loss`; None without.
    """

    td_error: Tensor | None
    moments: Tensor | None


class Update:
    """Runs SGD steps. Owns the optimisers, but neither the publication of weights nor the schedules.

    The calling thread should flush denormal numbers to zero (:func:`rollmill.models.device.take_threads`): the moments
    of a dead unit become denormal after a thousand steps, and Adam's step then takes three times as long on a CPU.

    Args:
        algorithm: The algorithm, on its device.
        config: Optimiser, learning rate, and ``max_grad_norm``, which bounds each objective's gradient.
        path: Precision (``"bf16"`` runs losses under autocast, ``"fp64"`` uses double parameters), memory format
            of convolutions, and whether losses are compiled.
        generator: Generator of the losses' noise, on the algorithm's device; None is torch's global one.
        collective: The ranks, each with its part of every minibatch.

    Attributes:
        sgd_steps: SGD steps so far.
        path: As given.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        config: OptimiserConfig,
        path: FastPath = PLAIN,
        *,
        generator: torch.Generator | None = None,
        collective: Collective | None = None,
    ) -> None:
        """Build the optimisers."""
        if collective is not None and collective.world_size > 1:
            refuse_running_statistics(algorithm, "one rank")
        if path.precision == "fp64":
            algorithm.double()
        set_channels_last(algorithm, path.channels_last)
        self._algorithm = algorithm
        self._generator = generator
        self.path = path
        self._config = config
        self._max_grad_norm = config.max_grad_norm
        self._collective = collective or Alone()
        self._objectives = algorithm.trained_objectives()
        _check_objectives(algorithm, self._objectives)
        self._losses: list[Callable[[Any, torch.Generator | None], Loss]] = [o.loss for o in self._objectives]
        if path.compile:
            # Minibatches differ in size because samples are excluded.
            self._losses = [torch.compile(loss, dynamic=True) for loss in self._losses]
        self._device = self._objectives[0].parameters[0].device
        self._optimisers = [
            make_optimiser(
                o.parameters,
                config if o.learning_rate is None else replace(config, learning_rate=o.learning_rate),
                self._device,
            )
            for o in self._objectives
        ]
        # An objective's own learning rate keeps its ratio to the learner's rate.
        self._ratios = [
            1.0 if o.learning_rate is None else o.learning_rate / config.learning_rate for o in self._objectives
        ]
        self._ratios_taken_over: list[float] | None = None
        everything = sum(p.requires_grad for p in algorithm.parameters())
        # Selecting parameters slows down each backward pass; None selects all.
        self._inputs = [None if len(o.parameters) == everything else list(o.parameters) for o in self._objectives]
        self._guard = NonFiniteGuard(self._device)
        self._statistics = _Means()
        self._names: dict[int, tuple[str, ...]] = {}
        self._differentiated: set[int] = set()
        self._has_td_errors = False
        self._has_centred = False
        self._is_told_to_stop = False
        self.sgd_steps = 0

    @property
    def objectives(self) -> Sequence[Objective]:
        """The parts of an SGD step."""
        return self._objectives

    @property
    def optimisers(self) -> Sequence[torch.optim.Optimizer]:
        """One optimiser for each objective."""
        return self._optimisers

    def step(self, parts: Iterable[Batch], *, is_stopping: Callable[[], bool] = lambda: False) -> Step | None:
        """Run one SGD step; does not wait for the device, except on several ranks for whether one is stopped.

        Args:
            parts: This rank's parts of the minibatch, on the algorithm's device; iterated once for each objective.
            is_stopping: Called before each part of the first objective, which may take seconds; True abandons the step.
                Several ranks abandon the same step, whichever of them is stopped.

        Returns:
            None if the step was abandoned; parameters are then unchanged.
        """
        td_error = moments = None
        for count, index in enumerate(self.due(self.sgd_steps + 1)):
            found = self._differentiate_parts(index, parts, _never if count else is_stopping)
            if found is None:
                return None
            td_error = found.td_error if td_error is None else td_error
            moments = found.moments if moments is None else moments
            self._descend(index)
        self.sgd_steps += 1
        self._algorithm.update_targets(self.sgd_steps)
        return Step(td_error, moments)

    def due(self, sgd_step: int) -> list[int]:
        """Return the objectives of this SGD step, counted from 1."""
        return [index for index, objective in enumerate(self._objectives) if sgd_step % objective.every == 0]

    def differentiate(self, index: int, batch: Batch) -> Loss:
        """Replace the gradients of one objective's parameters by those of a batch."""
        return self._differentiate(index, batch, adds_up=False)

    def centre_pictures(self, batch: Batch) -> bool:
        """Centre images by the brightness of a replay's first batch, once, before the first SGD step.

        Online and target networks must use the same level, and temporal differences must not change without an SGD
        step, so the level is not updated later.

        Returns:
            Whether anything has changed.
        """
        if self._has_centred:
            return False
        self._has_centred = True
        layers = centred_layers(self._algorithm)
        # A resumed run has centred images already.
        if not layers or any(layer.moments is not None and layer.moments.count > 0 for layer in layers):
            return False
        with (
            torch.no_grad(),
            self._autocast(),
            observing_pixel_levels(self._algorithm, sum_over_ranks=self._collective.sum),
        ):
            for objective in self._objectives:
                objective.loss(batch, self._generator)
        self._algorithm.copy_buffers_to_targets()
        return True

    def require_td_errors(self) -> None:
        """Check that an objective provides temporal differences for priorities.

        Raises:
            ValueError: Every objective has run, and none returned temporal differences.
        """
        if not self._has_td_errors and len(self._differentiated) == len(self._objectives):
            raise ValueError(
                f"replay.priorities is 'proportional', but no loss of {type(self._algorithm).__name__} returns "
                "td_error, which priorities need: return it, or choose replay.priorities=uniform"
            )

    def apply(self, indices: Sequence[int], statistics: Mapping[str, Tensor]) -> bool:
        """Run an SGD step with the gradients that these objectives' parameters have.

        Returns:
            Whether the targets may have changed.
        """
        self.sgd_steps += 1
        if statistics:
            self._statistics.add(tuple(statistics), torch.stack(list(statistics.values())))
        for index in indices:
            self._descend(index)
        return self._algorithm.update_targets(self.sgd_steps) is not False

    def check(self, further: Callable[[], Sequence[str]] = tuple) -> None:
        """Check that all gradients since the last check were finite; waits for the device.

        Args:
            further: Returns further non-finite names for the message.

        Raises:
            NonFiniteGradientError: A gradient was not finite; it was replaced by zeros.
        """

        def where() -> str:
            names = [*further(), *(f"loss/{name}" for name in self._statistics.non_finite())]
            return f"SGD step {self.sgd_steps} or one before; not finite: {', '.join(names) or 'nothing else'}"

        self._guard.check(where)

    def last(self, statistic: str) -> float | None:
        """Return a statistic of the last SGD step; None if no objective has it. Waits for the device."""
        return self._statistics.last(statistic)

    def take_statistics(self) -> dict[str, float]:
        """Return means over the SGD steps since the last call; waits for the device."""
        return self._statistics.take()

    def set_learning_rate(self, value: float) -> None:
        """Set the learner's learning rate; an objective's own rate keeps its ratio to it."""
        self._set_learning_rates(value, self._ratios)

    def follow(self, numbers: LiveNumbers, learning_rate: float) -> None:
        """Use the numbers that are set, and otherwise the scheduled learning rate and the configured other ones."""
        # A policy that continues from another gets a number from it, to which the other's ratios belong. The scheduled
        # rate is the policy's own.
        taken = self._ratios_taken_over if numbers.is_set("learning_rate") else None
        self._set_learning_rates(numbers.value("learning_rate", learning_rate), taken or self._ratios)
        norm = self._config.max_grad_norm
        self._max_grad_norm = numbers.value("max_grad_norm", math.inf) if numbers.is_set("max_grad_norm") else norm
        if isinstance(method := self._config.method, Adam):
            first, second = method.betas
            betas = numbers.value("adam_beta1", first), numbers.value("adam_beta2", second)
            for optimiser in self._optimisers:
                set_betas(optimiser, betas)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, without the algorithm's: moments and the count of steps."""
        optimisers = {
            o.name: optimiser_state(optimiser) for o, optimiser in zip(self._objectives, self._optimisers, strict=True)
        }
        state: dict[str, Any] = {"sgd_steps": self.sgd_steps, "optimisers": optimisers}
        if self._ratios_taken_over is not None:
            state["learning_rate_ratios"] = self._ratios_taken_over
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`state_dict`.

        Raises:
            ValueError: It belongs to another algorithm, optimiser or network.
        """
        self.load_optimisers(state)
        self.sgd_steps = state["sgd_steps"]
        ratios = state.get("learning_rate_ratios")  # missing unless the policy continues from another one
        self._ratios_taken_over = None if ratios is None else list(ratios)

    def take_over(self, other: Update) -> None:
        """Continue from the state of another policy, with its ratios between learning rates."""
        self.load_state_dict(other.state_dict())
        self._ratios_taken_over = list(other._ratios_taken_over or other._ratios)

    def load_optimisers(self, state: Mapping[str, Any]) -> None:
        """Restore only the moments; see :meth:`load_state_dict`."""
        names = [o.name for o in self._objectives]
        if list(state["optimisers"]) != names:
            raise ValueError(
                f"the checkpoint has optimisers of {', '.join(state['optimisers'])}, this algorithm of "
                f"{', '.join(names)}: resume with the saved configuration of the algorithm, or start a new run"
            )
        for name, optimiser in zip(names, self._optimisers, strict=True):
            load_optimiser_state(optimiser, state["optimisers"][name])

    def lay_out_moments(self) -> None:
        """Convert restored moments to the memory layout of their parameters.

        All shared parameters with four axes are in channels_last, and fused optimisers read both in storage order.
        """
        for optimiser in self._optimisers:
            load_optimiser_state(optimiser, optimiser_state(optimiser))

    def _set_learning_rates(self, value: float, ratios: Sequence[float]) -> None:
        for optimiser, ratio in zip(self._optimisers, ratios, strict=True):
            set_learning_rate(optimiser, value * ratio)

    def _differentiate_parts(self, index: int, parts: Iterable[Batch], is_stopping: Callable[[], bool]) -> Step | None:
        """Compute the whole minibatch's gradient of one objective; None if the step is abandoned."""
        alone = self._collective.world_size == 1
        td_error = moments = total = last = None
        names: tuple[str, ...] = ()
        for part in parts:
            if alone and is_stopping():
                return None
            loss = self._differentiate(index, part, adds_up=last is not None)
            td_error, last = loss.td_error, part
            moments = loss.moments if moments is None or loss.moments is None else moments + loss.moments
            if loss.statistics:
                names = tuple(loss.statistics)
                statistics = torch.stack(list(loss.statistics.values()))
                total = statistics if total is None else total + statistics
        if last is None:
            self._zero_grad(index)
        if not alone:
            names = self._names.setdefault(index, names) if names else self._names.get(index, ())
            weight = None if last is None else _weight(last)
            total = self._sum_over_ranks(index, total, weight, is_stopping=is_stopping())[: len(names)]
            if self._is_told_to_stop:
                return None
        if total is not None:
            self._statistics.add(names, total)
        return Step(td_error, moments)

    def _sum_over_ranks(
        self, index: int, statistics: Tensor | None, weight: Tensor | None, *, is_stopping: bool
    ) -> Tensor:
        """Sum the gradients and statistics of all ranks, or average those that are means."""
        parameters = list(self._objectives[index].parameters)
        message = torch.zeros(MOST_STATISTICS + 2, device=self._device)
        if statistics is not None:
            message[: len(statistics)] = statistics
        if weight is not None:
            torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], weight)
            message *= weight
            message[-1] = weight
        message[-2] = float(is_stopping)
        summed = self._collective.sum_gradients(parameters, message)
        if weight is not None:
            total = summed[-1].clamp(min=1.0)
            torch._foreach_div_([p.grad for p in parameters if p.grad is not None], total)
            return summed / total
        self._is_told_to_stop = bool(summed[-2] > 0)
        return summed

    def _check_statistics(self, statistics: Mapping[str, Tensor]) -> None:
        """Check what a loss reports, which may be the user's."""
        name = type(self._algorithm).__name__
        if len(statistics) > MOST_STATISTICS:
            raise ValueError(f"{name} reports {len(statistics)} statistics of a loss; report {MOST_STATISTICS} at most")
        for statistic, value in statistics.items():
            if not isinstance(value, Tensor) or value.ndim:
                shape = f"tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise TypeError(
                    f"{name} reports a {shape} as the statistic {statistic!r} of a loss; report a scalar tensor, such "
                    "as value.detach().mean()"
                )

    def _zero_grad(self, index: int) -> None:
        for parameter in self._objectives[index].parameters:
            parameter.grad = None

    def _differentiate(self, index: int, batch: Batch, *, adds_up: bool) -> Loss:
        with self._autocast():
            loss = self._losses[index](batch, self._generator)
        if not adds_up:  # only now, so that new gradients reuse the memory of the old ones
            self._zero_grad(index)
        if index not in self._differentiated:
            self._check_statistics(loss.statistics or {})
        # Parameters of other objectives get no gradient, and none is computed for them.
        loss.value.backward(inputs=self._inputs[index])  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._differentiated.add(index)
        self._has_td_errors |= loss.td_error is not None
        return loss

    def _descend(self, index: int) -> None:
        objective = self._objectives[index]
        norm = clip_grad_norm_(objective.parameters, self._max_grad_norm, self._guard)
        self._optimisers[index].step()
        name = "gradient_norm" if len(self._objectives) == 1 else f"{objective.name}_gradient_norm"
        self._statistics.add((name,), norm.view(1))

    @contextmanager
    def _autocast(self) -> Iterator[None]:
        if self.path.precision != "bf16":
            yield
            return
        with torch.autocast(self._device.type, dtype=torch.bfloat16):
            yield


class _Means:
    """Sums of statistics over SGD steps, on the device until the means are read."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, ...], Tensor] = {}
        self._counts: dict[tuple[str, ...], int] = {}
        self._last: dict[tuple[str, ...], Tensor] = {}

    def add(self, names: tuple[str, ...], values: Tensor) -> None:
        """Add one number for each name."""
        self._last.pop(names, None)  # The newest is the last one.
        self._last[names] = values
        if names in self._sums:
            self._sums[names] += values
            self._counts[names] += 1
        else:
            self._sums[names] = values.detach().clone()
            self._counts[names] = 1

    def last(self, name: str) -> float | None:
        """Return the last number added for a name; None if there is none."""
        for names, values in reversed(self._last.items()):
            if name in names:
                return float(values[names.index(name)])
        return None

    def take(self) -> dict[str, float]:
        """Return the means since the last call."""
        if not self._sums:
            return {}
        added = [(name, count) for names, count in self._counts.items() for name in names]
        sums: dict[str, float] = defaultdict(float)
        counts: dict[str, int] = defaultdict(int)
        # A name may be among others in one step and alone in another one.
        for (name, count), value in zip(added, torch.cat(list(self._sums.values())).tolist(), strict=True):
            sums[name] += value
            counts[name] += count
        self._sums.clear()
        self._counts.clear()
        return {name: value / counts[name] for name, value in sums.items()}

    def non_finite(self) -> list[str]:
        """Return names whose sum is not finite."""
        return [
            name
            for names, values in self._sums.items()
            for name, is_finite in zip(names, values.isfinite().tolist(), strict=True)
            if not is_finite
        ]


def _weight(batch: Batch) -> Tensor | None:
    """Weight of a rank's mean among all ranks; None if losses are shares that add up."""
    if isinstance(batch, OnPolicyBatch):
        return None
    if isinstance(batch, SequenceBatch):
        return batch.valid.sum().float()
    return torch.ones((), device=batch.reward.device)


def _check_objectives(algorithm: Algorithm, objectives: Sequence[Objective]) -> None:
    """Check the objectives of a user's own algorithm."""
    names = [objective.name for objective in objectives]
    wrong = ""
    if not objectives:
        wrong = "returned none: return at least one"
    elif len(set(names)) < len(names):
        wrong = f"has objectives with the names {', '.join(names)}: use unique names, which checkpoints use"
    else:
        for objective in objectives:
            if not objective.parameters:
                wrong = (
                    f"has objective {objective.name!r} without parameters to train: give some, or freeze fewer "
                    "(learner.freeze)"
                )
            elif type(objective.every) is not int or objective.every < 1:
                wrong = (
                    f"has objective {objective.name!r} with every={objective.every!r}: give an integer of at least 1"
                )
    if wrong:
        raise ValueError(f"objectives() of {type(algorithm).__name__} {wrong}")


def refuse_running_statistics(algorithm: nn.Module, instead: str) -> None:
    """Refuse layers with running statistics, because learners and ranks share gradients, not buffers.

    Args:
        algorithm: The algorithm.
        instead: What else allows such layers, for the message.

    Raises:
        ValueError: It has such a layer.
    """
    for name, module in algorithm.named_modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
            raise ValueError(
                f"{name} is a {type(module).__name__}, whose statistics are not shared between learners: use a layer "
                f"without statistics, such as LayerNorm, or {instead}"
            )

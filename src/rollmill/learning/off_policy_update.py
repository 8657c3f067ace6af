"""One SGD step of an off-policy algorithm: its objectives in order, then its target networks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from rollmill.algorithms.base import Loss, Objective, OffPolicyAlgorithm, SequenceBatch, TransitionBatch
from rollmill.learning.collective import Alone, Collective
from rollmill.learning.config import LearnerConfig
from rollmill.learning.optimisers import (
    NonFiniteGuard,
    clip_grad_norm_,
    load_optimiser_state,
    make_optimiser,
    optimiser_state,
    set_learning_rate,
)
from rollmill.models.memory_format import set_channels_last
from rollmill.models.pixel_levels import centred_layers, observing_pixel_levels

__all__ = ["OffPolicyUpdater", "Precision"]

Precision = Literal["fp32", "bf16", "fp64"]


class OffPolicyUpdater:
    """Learns from batches of a replay: owns the optimisers, not the weights' publication.

    The thread that steps should take denormal numbers for zero (:func:`rollmill.models.device.take_threads`): the
    moments of a dead unit become denormal after a thousand steps, and Adam's step then takes three times as long on a
    CPU.

    Args:
        algorithm: On its device, in its precision.
        config: Optimiser, learning rate and ``max_grad_norm``, which bounds each objective's gradient.
        generator: Noise of the losses, of the algorithm's device; None is torch's global one.
        precision: ``"bf16"`` runs the losses under autocast; ``"fp64"`` makes the parameters double.
        channels_last: Memory format of convolutions.
        collective: The ranks that learn together, each from an equal part of the batch.

    Attributes:
        sgd_steps: SGD steps done.
        precision: As given.
        channels_last: As given.
        learning_rates: Objective -> its learning rate, as configured; a schedule scales them.
    """

    def __init__(
        self,
        algorithm: OffPolicyAlgorithm,
        config: LearnerConfig,
        *,
        generator: torch.Generator | None = None,
        precision: Precision = "fp32",
        channels_last: bool = True,
        collective: Collective | None = None,
    ) -> None:
        """Makes the optimisers."""
        if precision == "fp64":
            algorithm.double()
        set_channels_last(algorithm, channels_last)
        self._algorithm = algorithm
        self._generator = generator
        self.precision: Precision = precision
        self.channels_last = channels_last
        self._max_grad_norm = config.max_grad_norm
        self._collective = collective or Alone()
        self._objectives = list(algorithm.objectives())
        _check_objectives(algorithm, self._objectives)
        self._device = self._objectives[0].parameters[0].device
        self._optimisers = [
            make_optimiser(
                o.parameters,
                config if o.learning_rate is None else replace(config, learning_rate=o.learning_rate),
                self._device,
            )
            for o in self._objectives
        ]
        self.learning_rates = {o.name: o.learning_rate or config.learning_rate for o in self._objectives}
        self._guard = NonFiniteGuard(self._device)
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self._differentiated: set[int] = set()
        self._has_td_errors = False
        self._has_centred = False
        self.sgd_steps = 0

    def step(self, batch: TransitionBatch | SequenceBatch) -> Tensor | None:
        """One SGD step; nothing waits for the device.

        Args:
            batch: On the algorithm's device.

        Returns:
            float32 ``[N]``: absolute temporal differences, or None if no objective has them.
        """
        self.centre_pictures(batch)
        self.sgd_steps += 1
        td_error = None
        for index in self.due(self.sgd_steps):
            loss = self.differentiate(index, batch)
            self._note(loss.statistics)
            self._average_over_ranks(index, batch)
            self._descend(index)
            if td_error is None:
                td_error = loss.td_error
        self._algorithm.update_targets(self.sgd_steps)
        return td_error

    @property
    def objectives(self) -> Sequence[Objective]:
        """What an SGD step consists of."""
        return self._objectives

    def due(self, sgd_step: int) -> list[int]:
        """Which objectives take part in this SGD step, counted from 1."""
        return [index for index, objective in enumerate(self._objectives) if sgd_step % objective.every == 0]

    def differentiate(self, index: int, batch: TransitionBatch | SequenceBatch) -> Loss:
        """Leaves one objective's gradients in its parameters."""
        objective = self._objectives[index]
        with self._autocast():
            loss = objective.loss(batch, self._generator)
        for parameter in objective.parameters:
            parameter.grad = None
        # What is not this objective's gets no gradient, and none is computed for it.
        loss.value.backward(inputs=list(objective.parameters))  # type: ignore[no-untyped-call]  # torch leaves it so
        self._differentiated.add(index)
        self._has_td_errors |= loss.td_error is not None
        return loss

    def centre_pictures(self, batch: TransitionBatch | SequenceBatch) -> bool:
        """Before the first SGD step: centres pictures by the brightness of those of a batch, for good.

        Online and target networks are to see the same, and a replay's temporal differences are not to change without an
        SGD step, so that nothing is merged into it later.

        Returns:
            Whether anything has changed: there are pictures to be centred, and nobody had done it.
        """
        if self._has_centred:
            return False
        self._has_centred = True
        layers = centred_layers(self._algorithm)
        # A run that goes on knows it already.
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
        """For who makes priorities of them.

        Raises:
            ValueError: Every objective has had its turn, and none has given temporal differences.
        """
        if not self._has_td_errors and len(self._differentiated) == len(self._objectives):
            raise ValueError(
                f"replay.priorities is 'proportional', but no loss of {type(self._algorithm).__name__} gives td_error, "
                "which priorities are made of: let one give it, or choose replay.priorities=uniform"
            )

    def apply(self, indices: Sequence[int], statistics: Mapping[str, Tensor]) -> bool:
        """An SGD step with the gradients that these objectives' parameters have, computed elsewhere.

        Returns:
            Whether the targets may have changed.
        """
        self.sgd_steps += 1
        for index in indices:
            self._descend(index)
        self._note(statistics)
        return self._algorithm.update_targets(self.sgd_steps) is not False

    def _average_over_ranks(self, index: int, batch: TransitionBatch | SequenceBatch) -> None:
        """The whole batch's gradient: losses are means over a rank's part, of sequences over its valid steps."""
        if self._collective.world_size == 1:
            return
        parameters = list(self._objectives[index].parameters)
        mine = torch.ones((), device=self._device)
        if isinstance(batch, SequenceBatch):
            mine = batch.valid.sum().float()
        torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], mine)
        all_of_them = self._collective.sum_gradients(parameters, mine.view(1))
        torch._foreach_div_([p.grad for p in parameters if p.grad is not None], all_of_them.clamp(min=1.0)[0])

    def _descend(self, index: int) -> None:
        objective = self._objectives[index]
        norm = clip_grad_norm_(objective.parameters, self._max_grad_norm, self._guard)
        self._optimisers[index].step()
        self._note({f"{objective.name}_gradient_norm": norm})

    def check(self) -> None:
        """Whether all gradients since the last check were finite; the one other place that waits for the device.

        Raises:
            NonFiniteGradientError: One was not; it has been replaced by zeros.
        """
        self._guard.check(self._what_was_not_finite)

    def take_statistics(self) -> dict[str, float]:
        """Means over the SGD steps since the last call; waits for the device."""
        if not self._sums:
            return {}
        values = torch.stack(list(self._sums.values())).tolist()
        means = {name: value / self._counts[name] for name, value in zip(self._sums, values, strict=True)}
        self._sums.clear()
        self._counts.clear()
        return means

    def scale_learning_rates(self, factor: float) -> None:
        """Sets every objective's learning rate to ``factor`` times its configured one."""
        for optimiser, rate in zip(self._optimisers, self.learning_rates.values(), strict=True):
            set_learning_rate(optimiser, factor * rate)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside the algorithm's own state: moments and the count of steps."""
        optimisers = {
            o.name: optimiser_state(optimiser) for o, optimiser in zip(self._objectives, self._optimisers, strict=True)
        }
        return {"sgd_steps": self.sgd_steps, "optimisers": optimisers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what :meth:`state_dict` gave.

        Raises:
            ValueError: It is of another algorithm, optimiser or network.
        """
        names = [o.name for o in self._objectives]
        if list(state["optimisers"]) != names:
            raise ValueError(
                f"the checkpoint has optimisers of {', '.join(state['optimisers'])}, this algorithm of "
                f"{', '.join(names)}: resume with the saved off_policy configuration, or start a new run"
            )
        for name, optimiser in zip(names, self._optimisers, strict=True):
            load_optimiser_state(optimiser, state["optimisers"][name])
        self.sgd_steps = state["sgd_steps"]

    def lay_out_moments(self) -> None:
        """Gives restored moments the memory layout that their parameters have now.

        Shared parameters with four axes are in channels_last, convolutions' or not, and fused optimisers read both in
        storage order.
        """
        for optimiser in self._optimisers:
            load_optimiser_state(optimiser, optimiser_state(optimiser))

    def _note(self, statistics: Mapping[str, Tensor]) -> None:
        for name, value in statistics.items():
            if name in self._sums:
                self._sums[name] += value
                self._counts[name] += 1
            else:
                self._sums[name] = value.detach().clone()
                self._counts[name] = 1

    @contextmanager
    def _autocast(self) -> Iterator[None]:
        if self.precision != "bf16":
            yield
            return
        with torch.autocast(self._device.type, dtype=torch.bfloat16):
            yield

    def _what_was_not_finite(self) -> str:
        names = [name for name, value in self._sums.items() if not value.isfinite()]
        return f"SGD step {self.sgd_steps} or one before; not finite since: {', '.join(names) or 'nothing else'}"


def _check_objectives(algorithm: OffPolicyAlgorithm, objectives: Sequence[Objective]) -> None:
    """What a user's own algorithm may have got wrong."""
    names = [objective.name for objective in objectives]
    wrong = ""
    if not objectives:
        wrong = "are none: give one at least"
    elif len(set(names)) < len(names):
        wrong = f"are called {', '.join(names)}: give each a name of its own, by which checkpoints know its optimiser"
    else:
        for objective in objectives:
            if not objective.parameters:
                wrong = f"have one, {objective.name!r}, without parameters: name what it is to change"
            elif type(objective.every) is not int or objective.every < 1:
                wrong = f"have one, {objective.name!r}, with every={objective.every!r}: it takes whole numbers from 1"
    if wrong:
        raise ValueError(f"the objectives() of {type(algorithm).__name__} {wrong}")

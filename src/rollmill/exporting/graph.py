"""An agent as one pure function from the environment's observations to its actions, which other programs can run."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rollmill.algorithms.base import Algorithm
from rollmill.envs.actions import ActionCodec, Choices, Numbers
from rollmill.envs.spaces import ACTION_MASK, Leaf, ObservationCodec, action_spec
from rollmill.envs.task_spaces import choices_of_task
from rollmill.exporting.acting import Acted, Given, acting_of
from rollmill.exporting.errors import ExportError
from rollmill.exporting.ports import Port, name_of_entry
from rollmill.specs import TASK, ActionSpec, ArraySpec

if TYPE_CHECKING:
    from rollmill.evaluation.agent import Agent, TaskSpaces

STATE, RESET, UNIFORM, NORMAL = "state", "reset", "uniform", "normal"
ACTION, NEXT_STATE, LOG_PROB, VALUE = "action", "next_state", "log_prob", "value"


class AgentGraph(nn.Module):
    """What an agent does with a batch of observations, on arrays in the environment's own form.

    Normalisers, encoders, core, heads, the choice of an action and its conversion to the action space are included.
    The module holds a copy of the part of the algorithm that acts, without target networks and other critics.

    Args:
        agent: The agent.
        sample: Whether actions are sampled, by random numbers that are inputs; else the best ones are taken.

    Attributes:
        samples: Whether actions are sampled.
        choices: Number of choices of each categorical head.
        inputs: What :meth:`forward` takes.
        others: Those that are not of the observation.
        outputs: What it returns.
        lacks_critic: Whether the critic, which judges by what all agents observe, is not the trained one.

    Raises:
        ExportError: ``sample`` for a policy that has no probabilities.
    """

    def __init__(self, agent: Agent, *, sample: bool = False) -> None:
        super().__init__()
        algorithm = _acting_alone(agent.algorithm)
        self.algorithm = algorithm
        self.lacks_critic = agent.snapshot.model.central_value
        self.acting = acting_of(algorithm, lacks_critic=self.lacks_critic)
        if sample and not self.acting.can_sample:
            raise ExportError(
                f"sample is on, but {type(algorithm).__name__} has no probabilities to sample from, or acts in a way "
                "of its own: leave out --sample (sample=False) to export its best actions"
            )
        codec, own = ObservationCodec(agent.observation_space), action_spec(agent.action_space)
        self.task = None if agent.task is None else _InTask(agent.task, codec.specs, own)
        self.samples, self.choices = sample, own.categorical_sizes
        self.others: tuple[Port, ...] = tuple(self._others(agent, own))
        self.actions = _Actions(own, ActionCodec(own, agent.snapshot.box_actions))
        outputs = list(self.actions.ports)
        if algorithm.state_size:
            outputs.append(Port(NEXT_STATE, "next_state", "float32", (algorithm.state_size,)))
        if self.acting.gives_log_prob:
            outputs.append(Port(LOG_PROB, "log_prob", "float32"))
        if self.acting.gives_value:
            outputs.append(Port(VALUE, "value", "float32"))
        self.outputs: tuple[Port, ...] = tuple(outputs)
        taken = {port.name for port in (*self.others, *outputs)}  # ONNX has one set of names for both
        self.entries = nn.ModuleList([_Entry(leaf) for leaf in codec.leaves])
        self.entry_names = [leaf.name for leaf in codec.leaves]
        names = [name_of_entry(name, taken | {*self.entry_names} - {name}) for name in self.entry_names]
        seen = [
            Port(name, "observation", *_array_of(leaf), leaf.path)
            for name, leaf in zip(names, codec.leaves, strict=True)
        ]
        self.inputs: tuple[Port, ...] = (*seen, *self.others)
        self.eval().requires_grad_(False)

    def forward(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Act.

        Args:
            inputs: Name -> ``[N, ...]``, as :attr:`inputs` says.

        Returns:
            Name -> ``[N, ...]``, as :attr:`outputs` says.
        """
        arrays = [inputs[port.name] for port in self.inputs[: len(self.entries)]]
        observation = {
            name: entry(array) for name, entry, array in zip(self.entry_names, self.entries, arrays, strict=True)
        }
        # An entry of the observation may be called like an input that this agent does not have.
        others = {port.name: inputs[port.name] for port in self.others}
        mask = others.get(ACTION_MASK)
        if self.task is not None:
            observation, mask = self.task(observation, mask, arrays[0].shape[0])
        noise = others.get(UNIFORM), others.get(NORMAL)
        acted = self.acting(Given(observation, mask, others.get(STATE), others.get(RESET), *noise))
        found = self.actions(acted)
        for name, value in ((NEXT_STATE, acted.state), (LOG_PROB, acted.log_prob), (VALUE, acted.value)):
            if value is not None:
                found[name] = value
        return {port.name: found[port.name] for port in self.outputs}

    def _others(self, agent: Agent, own: ActionSpec) -> list[Port]:
        """Inputs besides the observation."""
        found = []
        if agent.needs_mask:
            found.append(Port(ACTION_MASK, "action_mask", "bool", (own.mask_size,)))
        if size := self.algorithm.state_size:
            found += [Port(STATE, "state", "float32", (size,)), Port(RESET, "reset", "bool")]
        if self.samples and self.acting.num_uniform:
            found.append(Port(UNIFORM, "uniform", "float32", (self.acting.num_uniform,)))
        if self.samples and self.acting.num_normal:
            found.append(Port(NORMAL, "normal", "float32", (self.acting.num_normal,)))
        return found


class _Entry(nn.Module):
    """An entry of the observation, from the environment's form to that of slots (see ``ObservationCodec.write``)."""

    block: Tensor
    value: Tensor

    def __init__(self, leaf: Leaf) -> None:
        super().__init__()
        self.shape = leaf.spec.shape
        self.dtype: torch.dtype = getattr(torch, leaf.spec.dtype)
        self.is_one_hot = leaf.choices is not None
        if leaf.choices is not None:
            # Of each column: the choice that it belongs to, and the value for which it is 1.
            least, n = np.broadcast_to(leaf.choices.least, leaf.choices.n.shape), leaf.choices.n
            block = np.repeat(np.arange(len(n)), n)
            value = np.concatenate([low + np.arange(size) for low, size in zip(least, n, strict=True)])
            self.register_buffer("block", torch.from_numpy(block.astype(np.int64)), persistent=False)
            self.register_buffer("value", torch.from_numpy(value.astype(np.int64)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.is_one_hot:
            chosen = x.reshape(x.shape[0], -1).to(torch.int64)
            return (chosen.index_select(1, self.block) == self.value).to(self.dtype)
        return x.reshape(x.shape[0], *self.shape).to(self.dtype)


class _InTask(nn.Module):
    """The observations and masks of a task in the spaces that all tasks share (see ``TaskView``)."""

    allowed: Tensor
    source: Tensor
    has_own: Tensor
    which: Tensor

    def __init__(self, task: TaskSpaces, own: Mapping[str, ArraySpec], own_action: ActionSpec) -> None:
        super().__init__()
        self.own = own
        self.shared = ObservationCodec(task.observation).specs
        self.sizes = list(action_spec(task.action).categorical_sizes)
        allowed = choices_of_task(own_action, action_spec(task.action))
        columns = np.flatnonzero(allowed)[: own_action.mask_size]
        source = np.zeros(len(allowed), np.int64)
        source[columns] = np.arange(len(columns))
        has_own = np.zeros(len(allowed), bool)
        has_own[columns] = True
        which = np.zeros(self.shared[TASK].shape if TASK in self.shared else (1,), np.float32)
        which[task.number if TASK in self.shared else 0] = 1.0
        for name, array in (("allowed", allowed), ("source", source), ("has_own", has_own), ("which", which)):
            self.register_buffer(name, torch.from_numpy(array.copy()), persistent=False)

    def forward(
        self, observation: Mapping[str, Tensor], mask: Tensor | None, rows: int
    ) -> tuple[dict[str, Tensor], Tensor]:
        found = {}
        for name, spec in self.shared.items():
            if name == TASK:
                found[name] = self.which.expand(rows, -1)
            elif name not in self.own:
                found[name] = self.which.new_zeros((rows, *spec.shape), dtype=getattr(torch, spec.dtype))
            else:
                found[name] = _padded(observation[name].to(getattr(torch, spec.dtype)), spec.shape)
        allowed = self.allowed.expand(rows, -1)
        if mask is not None:
            # Where a mask forbids all choices of a head, those of the task are allowed.
            given = mask.to(torch.bool).index_select(1, self.source) & self.has_own
            heads = torch.split(given, self.sizes, 1)
            is_free = ~torch.cat([head.any(1, keepdim=True).expand_as(head) for head in heads], 1)
            allowed = torch.where(self.has_own & ~is_free, given, allowed)
        return found, allowed


class _Actions(nn.Module):
    """Stored actions in the form of the environment's action space (see ``ActionCodec``).

    Attributes:
        ports: The outputs, one for each component of the space.
    """

    def __init__(self, spec: ActionSpec, codec: ActionCodec) -> None:
        super().__init__()
        keys: tuple[str | int, ...] = spec.keys or tuple(range(len(codec.parts)))
        is_one = spec.structure not in ("tuple", "dict")
        self.parts = nn.ModuleList([_make_part(part) for part in codec.parts])
        self.ports = [
            Port(ACTION if is_one else f"{ACTION}/{key}", "action", *_array_of_part(part), () if is_one else (key,))
            for key, part in zip(keys, codec.parts, strict=True)
        ]

    def forward(self, acted: Acted) -> dict[str, Tensor]:
        return {port.name: part(acted) for port, part in zip(self.ports, self.parts, strict=True)}


class _Choices(nn.Module):
    start: Tensor

    def __init__(self, part: Choices) -> None:
        super().__init__()
        self.columns, self.is_scalar = part.columns, part.scalar
        start = np.zeros(part.columns.stop - part.columns.start, np.int64) if part.start is None else part.start
        self.register_buffer("start", torch.from_numpy(start.copy()), persistent=False)

    def forward(self, acted: Acted) -> Tensor:
        assert acted.discrete is not None
        chosen = acted.discrete[:, self.columns].to(torch.int64) + self.start
        return chosen[:, 0] if self.is_scalar else chosen


class _Numbers(nn.Module):
    low: Tensor
    high: Tensor
    half_range: Tensor

    def __init__(self, part: Numbers) -> None:
        super().__init__()
        self.columns, self.shape = part.columns, part.head.shape
        self.dtype: torch.dtype = getattr(torch, part.head.dtype)
        self.is_scaled, self.is_squashed, self.is_clipped = part.half_range is not None, part.squash, part.clip
        half_range = np.zeros_like(part.low) if part.half_range is None else part.half_range
        for name, array in (("low", part.low), ("high", part.high), ("half_range", half_range)):
            self.register_buffer(name, torch.from_numpy(array.copy()), persistent=False)

    def forward(self, acted: Acted) -> Tensor:
        assert acted.continuous is not None
        value = acted.continuous[:, self.columns].to(self.low.dtype)
        if self.is_scaled:
            value = value.tanh() if self.is_squashed else value
            value = (value + 1.0) * self.half_range + self.low
        if self.is_scaled or self.is_clipped:
            value = torch.minimum(torch.maximum(value, self.low), self.high)
        return value.to(self.dtype).reshape(value.shape[0], *self.shape)


def _make_part(part: Choices | Numbers) -> nn.Module:
    return _Numbers(part) if isinstance(part, Numbers) else _Choices(part)


def _array_of_part(part: Choices | Numbers) -> tuple[str, tuple[int, ...]]:
    if isinstance(part, Numbers):
        return part.head.dtype, part.head.shape
    return "int64", () if part.scalar else (part.columns.stop - part.columns.start,)


def _array_of(leaf: Leaf) -> tuple[str, tuple[int, ...]]:
    """Dtype and shape of an entry as the environment gives it."""
    return str(np.dtype(leaf.space.dtype)), tuple(leaf.space.shape or ())


def _padded(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``x [N, ...]`` with zeros behind it, so that it has the shape ``[N, *shape]``."""
    missing = [most - size for size, most in zip(x.shape[1:], shape, strict=True)]
    if not any(missing):
        return x
    return functional.pad(x, [width for most in reversed(missing) for width in (0, most)])


def _acting_alone(algorithm: Algorithm) -> Algorithm:
    """Copy an algorithm without critics, target networks and whatever else acting does not use."""
    alone = copy.deepcopy(algorithm).cpu()
    for name, child in list(alone.named_children()):
        if child is not alone.acting and child.state_dict():
            delattr(alone, name)
    return alone

"""Conversion of stored actions to an environment's actions."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollmill.envs.views import Array
from rollmill.specs import ActionSpec, BoxActions, BoxHead, CategoricalHead

# Its inverse hyperbolic tangent is 7.25, and that of 1 infinite.
MOST_SQUASHED = 1.0 - 1e-6


class Choices:
    """``Discrete`` or ``MultiDiscrete``: columns of ``action_discrete``."""

    def __init__(self, first: int, heads: list[CategoricalHead], scalar: bool) -> None:
        self.column = first
        self.columns = slice(first, first + len(heads))
        self.scalar = scalar
        start = np.array([h.start for h in heads], np.int64)
        self.start = start if start.any() else None

    def batch(self, discrete: Array | None, continuous: Array | None) -> Array:
        """Decode ``[B, Kd]`` and ``[B, Kc]`` to ``[B, ...]``."""
        assert discrete is not None
        if self.scalar:
            chosen = discrete[:, self.column].astype(np.int64)
            return chosen if self.start is None else chosen + self.start[0]
        chosen = discrete[:, self.columns].astype(np.int64)
        return chosen if self.start is None else chosen + self.start

    def rows(self, discrete: Array | None, continuous: Array | None) -> list[Any]:
        """Decode to one component of an action for each row."""
        batch = self.batch(discrete, continuous)
        return batch.tolist() if self.scalar else list(batch)

    def write(self, action: Array, discrete: Array | None, continuous: Array | None) -> None:
        """Encode one component of actions, ``[B, ...]``, into ``[B, Kd]`` or ``[B, Kc]``; inverse of :meth:`batch`."""
        assert discrete is not None
        chosen = np.asarray(action).reshape(len(discrete), -1)
        discrete[:, self.columns] = chosen if self.start is None else chosen - self.start


class Numbers:
    """``Box``: columns of ``action_continuous``."""

    def __init__(self, first: int, head: BoxHead, box: BoxActions) -> None:
        self.columns = slice(first, first + head.size)
        self.head = head
        # In the environment's dtype: the nearest float32 may lie outside a float64 box, which `contains` would reject.
        # A float16 box's range may overflow float16; float32 stays within the bounds.
        dtype = np.promote_types(head.dtype, np.float32)
        self.low = np.array(head.low, head.dtype).astype(dtype)
        self.high = np.array(head.high, head.dtype).astype(dtype)
        self.squash = box == "tanh"
        self.half_range = (self.high - self.low) / 2 if box != "clip" else None
        self.clip = bool(np.isfinite(self.low).any() or np.isfinite(self.high).any())

    def batch(self, discrete: Array | None, continuous: Array | None) -> Array:
        """Decode ``[B, Kd]`` and ``[B, Kc]`` to ``[B, ...]``."""
        assert continuous is not None
        stored = continuous[:, self.columns].astype(self.low.dtype, copy=False)
        if self.half_range is not None:
            value = np.tanh(stored) if self.squash else stored.copy()
            value += 1.0
            value *= self.half_range
            value += self.low
            # Rounding may exceed the bound by one unit in the last place, which `contains` would reject.
            np.clip(value, self.low, self.high, out=value)
        elif self.clip:
            value = np.clip(stored, self.low, self.high)
        else:
            value = stored.copy()
        batch: Array = value.astype(self.head.dtype, copy=False).reshape(len(value), *self.head.shape)
        return batch

    def rows(self, discrete: Array | None, continuous: Array | None) -> list[Any]:
        """Decode to one component of an action for each row."""
        return list(self.batch(discrete, continuous))

    def write(self, action: Array, discrete: Array | None, continuous: Array | None) -> None:
        """Encode one component of actions, ``[B, ...]``, into ``[B, Kd]`` or ``[B, Kc]``; inverse of :meth:`batch`."""
        assert continuous is not None
        value = np.asarray(action, self.low.dtype).reshape(len(continuous), -1)
        if self.half_range is not None:
            # Where both bounds are equal, every stored number becomes the same action: store 0, the middle of [-1, 1].
            is_fixed = self.half_range == 0.0
            value = (value - self.low) / np.where(is_fixed, 1.0, self.half_range) - 1.0
            value[:, is_fixed] = 0.0
        if self.squash:
            value = np.arctanh(np.clip(value, -MOST_SQUASHED, MOST_SQUASHED))
        continuous[:, self.columns] = value


class ActionCodec:
    """Converts a slot's action arrays into an environment's actions.

    A choice ``c`` of a categorical head becomes ``start + c``. "clip" clips a Gaussian's number to the box. With "tanh"
    the stored number ``u`` is the one before squashing, and the environment gets
    ``low + (tanh(u) + 1) / 2 * (high - low)``; with "scale" it gets ``low + (u + 1) / 2 * (high - low)``.

    Attributes:
        spec: The action of one row.
        parts: The components of the action space, in order.
    """

    def __init__(self, spec: ActionSpec, box: BoxActions = "clip") -> None:
        """Prepare the columns of each component.

        Args:
            spec: The action of one row.
            box: Conversion of continuous actions.

        Raises:
            ValueError: "tanh" or "scale" with a Box without finite bounds.
        """
        self.spec = spec
        kinds = spec.components or ((spec.structure, len(spec.heads)),)
        self.parts: list[Choices | Numbers] = []
        taken = choices = numbers = 0
        for kind, count in kinds:
            heads = spec.heads[taken : taken + count]
            taken += count
            if kind == "box":
                (head,) = heads
                assert isinstance(head, BoxHead)
                if box != "clip" and not head.is_bounded:
                    raise ValueError(_unbounded(head, box))
                self.parts.append(Numbers(numbers, head, box))
                numbers += head.size
            else:
                categorical = [h for h in heads if isinstance(h, CategoricalHead)]
                self.parts.append(Choices(choices, categorical, scalar=kind == "discrete"))
                choices += len(categorical)

    def decode_batch(self, discrete: Array | None, continuous: Array | None) -> Any:
        """Decode the actions of a whole vector environment.

        Args:
            discrete: int32 ``[B, Kd]`` or None without categorical heads.
            continuous: float32 ``[B, Kc]`` or None without Box heads.

        Returns:
            int64 ``[B]`` (Discrete), int64 ``[B, K]`` (MultiDiscrete), float ``[B, *shape]`` (Box), or a tuple or dict
            of those; never a view of the arguments.
        """
        parts = [part.batch(discrete, continuous) for part in self.parts]
        if self.spec.structure == "tuple":
            return tuple(parts)
        if self.spec.structure == "dict":
            return dict(zip(self.spec.keys, parts, strict=True))
        return parts[0]

    def encode_batch(self, action: Any, rows: int) -> tuple[Array | None, Array | None]:
        """Return what slots hold for actions of the environment: the inverse of :meth:`decode_batch`.

        Args:
            action: As :meth:`decode_batch` returns it.
            rows: B.

        Returns:
            int32 ``[B, Kd]`` and float32 ``[B, Kc]``, None without such heads.
        """
        spec = self.spec
        discrete = np.zeros((rows, spec.num_discrete), np.int32) if spec.num_discrete else None
        continuous = np.zeros((rows, spec.num_continuous), np.float32) if spec.num_continuous else None
        if spec.structure == "dict":
            action = [action[key] for key in spec.keys]
        elif spec.structure != "tuple":
            action = [action]
        for part, of_part in zip(self.parts, action, strict=True):
            part.write(of_part, discrete, continuous)
        return discrete, continuous

    def encode_numbers(self, numbers: Array) -> Array:
        """Return what slots hold for real numbers of the environment.

        Args:
            numbers: float32 ``[B, Kc]``, those of all Box heads one after another.
        """
        stored = np.zeros_like(numbers)
        for part in self.parts:
            if isinstance(part, Numbers):
                part.write(numbers[:, part.columns], None, stored)
        return stored

    def decode_rows(self, discrete: Array | None, continuous: Array | None) -> list[Any]:
        """Decode one action for each row; ``Discrete`` actions are Python integers (which compare fastest)."""
        if self.spec.structure == "tuple":
            return list(zip(*(part.rows(discrete, continuous) for part in self.parts), strict=True))
        if self.spec.structure == "dict":
            columns = [part.rows(discrete, continuous) for part in self.parts]
            return [dict(zip(self.spec.keys, row, strict=True)) for row in zip(*columns, strict=True)]
        return self.parts[0].rows(discrete, continuous)

    def decode_row(self, discrete_row: Array | None, continuous_row: Array | None) -> Any:
        """Decode the action of one environment from ``[Kd]`` and ``[Kc]``."""
        discrete = None if discrete_row is None else np.asarray(discrete_row)[None]
        continuous = None if continuous_row is None else np.asarray(continuous_row)[None]
        return self.decode_rows(discrete, continuous)[0]


def _unbounded(head: BoxHead, box: BoxActions) -> str:
    found = f"the action's Box has bounds low={head.low}, high={head.high}"
    if box == "tanh":
        return f"squash_actions is on, but {found}; it needs finite bounds: turn squash_actions off"
    return (
        f"{found}; scaling actions from [-1, 1] needs finite bounds: wrap the environment "
        "in one with bounds (gymnasium.wrappers.TransformAction(env, lambda a: a, Box(-1, 1, shape))), or use an "
        "on-policy algorithm with model.scale_actions=false"
    )

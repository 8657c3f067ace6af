"""Stored actions on their way to the environment."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollmill.envs.views import Array
from rollmill.specs import ActionSpec, BoxActions, BoxHead, CategoricalHead

__all__ = ["ActionCodec"]


class _Choices:
    """``Discrete`` or ``MultiDiscrete``: columns of ``action_discrete``."""

    def __init__(self, first: int, heads: list[CategoricalHead], scalar: bool) -> None:
        self.column = first
        self.columns = slice(first, first + len(heads))
        self.scalar = scalar
        start = np.array([h.start for h in heads], np.int64)
        self.start = start if start.any() else None

    def batch(self, discrete: Array | None, continuous: Array | None) -> Array:
        assert discrete is not None
        if self.scalar:
            chosen = discrete[:, self.column].astype(np.int64)
            return chosen if self.start is None else chosen + self.start[0]
        chosen = discrete[:, self.columns].astype(np.int64)
        return chosen if self.start is None else chosen + self.start

    def rows(self, discrete: Array | None, continuous: Array | None) -> list[Any]:
        batch = self.batch(discrete, continuous)
        return batch.tolist() if self.scalar else list(batch)


class _Numbers:
    """``Box``: columns of ``action_continuous``."""

    def __init__(self, first: int, head: BoxHead, box: BoxActions) -> None:
        self.columns = slice(first, first + head.size)
        self.head = head
        # In the environment's dtype: the nearest float32 may lie outside a float64 box, which `contains` would refuse.
        # What lies between a float16 box's bounds may be too much for that; it comes out of float32 inside of them.
        dtype = np.promote_types(head.dtype, np.float32)
        self.low = np.array(head.low, head.dtype).astype(dtype)
        self.high = np.array(head.high, head.dtype).astype(dtype)
        self.squash = box == "tanh"
        self.half_range = (self.high - self.low) / 2 if box != "clip" else None
        self.clip = bool(np.isfinite(self.low).any() or np.isfinite(self.high).any())

    def batch(self, discrete: Array | None, continuous: Array | None) -> Array:
        assert continuous is not None
        stored = continuous[:, self.columns].astype(self.low.dtype, copy=False)
        if self.half_range is not None:
            value = np.tanh(stored) if self.squash else stored.copy()
            value += 1.0
            value *= self.half_range
            value += self.low
            # Rounding may step over the edge by one unit in the last place, which `contains` would refuse.
            np.clip(value, self.low, self.high, out=value)
        elif self.clip:
            value = np.clip(stored, self.low, self.high)
        else:
            value = stored.copy()
        batch: Array = value.astype(self.head.dtype, copy=False).reshape(len(value), *self.head.shape)
        return batch

    def rows(self, discrete: Array | None, continuous: Array | None) -> list[Any]:
        return list(self.batch(discrete, continuous))


class ActionCodec:
    """Turns the stored action arrays of a slot into what an environment expects.

    A choice ``c`` of a categorical head becomes ``start + c``. A plain Gaussian's number is clipped to the box
    ("clip"). With "tanh" the stored number ``u`` is the one before the squashing, and the environment gets
    ``low + (tanh(u) + 1) / 2 * (high - low)``; with "scale" it gets ``low + (u + 1) / 2 * (high - low)``.
    """

    def __init__(self, spec: ActionSpec, box: BoxActions = "clip") -> None:
        """Prepare the columns of each component.

        Args:
            spec: The action of one row.
            box: What becomes of real numbers.

        Raises:
            ValueError: A Box without finite bounds has no range to squash or scale into.
        """
        self.spec = spec
        kinds = spec.components or ((spec.structure, len(spec.heads)),)
        self._parts: list[_Choices | _Numbers] = []
        taken = choices = numbers = 0
        for kind, count in kinds:
            heads = spec.heads[taken : taken + count]
            taken += count
            if kind == "box":
                (head,) = heads
                assert isinstance(head, BoxHead)
                if box != "clip" and not head.is_bounded:
                    raise ValueError(_unbounded(head, box))
                self._parts.append(_Numbers(numbers, head, box))
                numbers += head.size
            else:
                categorical = [h for h in heads if isinstance(h, CategoricalHead)]
                self._parts.append(_Choices(choices, categorical, scalar=kind == "discrete"))
                choices += len(categorical)

    def decode_batch(self, discrete: Array | None, continuous: Array | None) -> Any:
        """The action of a whole vector environment.

        Args:
            discrete: int32 ``[B, Kd]`` or None where there are no categorical heads.
            continuous: float32 ``[B, Kc]`` or None where there are no Box heads.

        Returns:
            int64 ``[B]`` (Discrete), int64 ``[B, K]`` (MultiDiscrete), float ``[B, *shape]`` (Box), or a tuple or dict
            of those; never a view of the arguments.
        """
        parts = [part.batch(discrete, continuous) for part in self._parts]
        if self.spec.structure == "tuple":
            return tuple(parts)
        if self.spec.structure == "dict":
            return dict(zip(self.spec.keys, parts, strict=True))
        return parts[0]

    def decode_rows(self, discrete: Array | None, continuous: Array | None) -> list[Any]:
        """The same as one action for each row; ``Discrete`` actions are Python integers (which compare fastest)."""
        if self.spec.structure == "tuple":
            return list(zip(*(part.rows(discrete, continuous) for part in self._parts), strict=True))
        if self.spec.structure == "dict":
            columns = [part.rows(discrete, continuous) for part in self._parts]
            return [dict(zip(self.spec.keys, row, strict=True)) for row in zip(*columns, strict=True)]
        return self._parts[0].rows(discrete, continuous)

    def decode_row(self, discrete_row: Array | None, continuous_row: Array | None) -> Any:
        """The action of one environment from ``[Kd]`` and ``[Kc]``."""
        discrete = None if discrete_row is None else np.asarray(discrete_row)[None]
        continuous = None if continuous_row is None else np.asarray(continuous_row)[None]
        return self.decode_rows(discrete, continuous)[0]


def _unbounded(head: BoxHead, box: BoxActions) -> str:
    found = f"the action's Box has bounds low={head.low}, high={head.high}"
    if box == "tanh":
        return f"squash_actions is on, but {found}: finite bounds are needed to squash into; switch squash_actions off"
    return (
        f"{found}, and actions are to be scaled from [-1, 1] to them: finite bounds are needed; wrap the environment "
        "in one with bounds (gymnasium.wrappers.TransformAction(env, lambda a: a, Box(-1, 1, shape))), or use an "
        "on-policy algorithm with model.scale_actions=false"
    )

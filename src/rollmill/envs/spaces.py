"""Specs of Gymnasium spaces, and the conversion of observations into slots.

Observations keep the environment's own dtype, with these exceptions: ``float64`` is stored as ``float32`` (no learner
uses the other bits, and MuJoCo's observations take half the memory), and ``Discrete`` / ``MultiDiscrete`` observations
are stored as one-hot ``float32`` vectors (an index is not a magnitude, and every encoder for vectors accepts them).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
from gymnasium import spaces

from rollmill.envs.errors import UnsupportedSpace
from rollmill.envs.views import Array
from rollmill.specs import ActionSpec, ArraySpec, BoxHead, CategoricalHead, Head

ACTION_MASK = "action_mask"
# Slots store choices as int32.
_MOST_CHOICES = 2**31 - 1


def without_mask(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return the space of observations without the action mask that they may hold."""
    if isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces:
        return spaces.Dict({key: child for key, child in space.spaces.items() if key != ACTION_MASK})
    return space


class Choices(NamedTuple):
    """Indices ``least .. least + n - 1``; each block's columns start at ``first``."""

    least: Array
    n: Array
    first: Array

    def columns(self, chosen: Array) -> Array | None:
        """Columns of the ones of ``[..., blocks]`` choices; None if a choice does not exist."""
        if chosen.dtype.kind not in "biu":
            return None
        blocks = chosen.astype(np.int64, copy=False) - self.least
        if ((blocks < 0) | (blocks >= self.n)).any():
            return None
        found: Array = blocks + self.first
        return found


def _choices(start: Any, n: Any) -> Choices:
    """The choices of one or several blocks; unsigned numbers of a space would not subtract or index as signed ones."""
    least, sizes = (np.atleast_1d(np.asarray(values)).ravel().astype(np.int64) for values in (start, n))
    return Choices(least, sizes, np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64))


class Leaf(NamedTuple):
    """An entry of an observation.

    Attributes:
        name: Its name in slots.
        path: The keys that lead to it.
        spec: Its spec in slots.
        choices: The one-hot blocks of choices; None for arrays that are copied.
        space: Its space.
    """

    name: str
    path: tuple[str | int, ...]
    spec: ArraySpec
    choices: Choices | None
    space: spaces.Space[Any]


def _uniform(values: Array, worst: float) -> float | None:
    return worst if values.size and bool(np.isfinite(values).all()) else None


def _leaf(name: str, path: tuple[str | int, ...], space: spaces.Space[Any]) -> Leaf:
    leaf = _make_leaf(name, path, space)
    if not leaf.spec.size:
        raise UnsupportedSpace(
            f"observation {name!r} is {space}, which is empty: every entry needs at least one number; leave this entry "
            "out of the observation space"
        )
    return leaf


def _make_leaf(name: str, path: tuple[str | int, ...], space: spaces.Space[Any]) -> Leaf:
    if isinstance(space, spaces.Box):
        dtype = "float32" if space.dtype == np.float64 else str(np.dtype(space.dtype))
        low = _uniform(space.low, float(space.low.min()) if space.low.size else 0.0)
        high = _uniform(space.high, float(space.high.max()) if space.high.size else 0.0)
        shape = space.shape or (1,)
        return Leaf(name, path, ArraySpec(shape=shape, dtype=dtype, low=low, high=high), None, space)
    if isinstance(space, spaces.MultiBinary):
        return Leaf(name, path, ArraySpec(shape=space.shape, dtype="int8", low=0, high=1), None, space)
    if isinstance(space, spaces.Discrete):
        spec = ArraySpec(shape=(int(space.n),), dtype="float32", low=0, high=1, one_hot=True)
        return Leaf(name, path, spec, _choices(space.start, space.n), space)
    if isinstance(space, spaces.MultiDiscrete):
        choices = _choices(space.start, space.nvec)
        spec = ArraySpec(shape=(int(choices.n.sum()),), dtype="float32", low=0, high=1, one_hot=True)
        return Leaf(name, path, spec, choices, space)
    raise UnsupportedSpace(
        f"observation {name!r} is {space}: Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of those are "
        "allowed, because a slot holds arrays of fixed shape; wrap the environment so that it leaves this entry out or "
        "encodes it as a Box"
    )


def _leaves(name: str, path: tuple[str | int, ...], space: spaces.Space[Any]) -> list[Leaf]:
    children: list[tuple[str | int, spaces.Space[Any]]]
    if isinstance(space, spaces.Dict):
        children = list(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        children = list(enumerate(space.spaces))
    else:
        return [_leaf(name or "obs", path, space)]
    found: list[Leaf] = []
    for key, child in children:
        if not path and key == ACTION_MASK:
            continue
        found += _leaves(f"{name}/{key}" if name else str(key), (*path, key), child)
    return found


def observation_specs(space: spaces.Space[Any]) -> dict[str, ArraySpec]:
    """Return name -> spec of the arrays that hold one observation.

    Args:
        space: The observation space of one environment. Nested ``Dict`` and ``Tuple`` are flattened with ``/``; any
            other space has the name ``"obs"``; a top-level entry ``"action_mask"`` is left out.

    Raises:
        UnsupportedSpace: ``Text``, ``Sequence``, ``Graph`` or another space without a fixed shape.
    """
    return ObservationCodec(space).specs


class ObservationCodec:
    """Writes observations into the views of a slot, with one copy.

    Attributes:
        specs: Name -> spec.
        leaves: The entries.
        plain: Whether the observation is a single array copied under the name ``"obs"``: callers may then
            write ``views["obs"][row] = observation`` themselves, if it has that shape and dtype.
        has_mask: Whether the observation carries the mask of allowed actions under ``"action_mask"``.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        """Flatten the space once.

        Raises:
            UnsupportedSpace: See :func:`observation_specs`.
        """
        self.leaves: list[Leaf] = _leaves("", (), space)
        self.specs: dict[str, ArraySpec] = {leaf.name: leaf.spec for leaf in self.leaves}
        if len(self.specs) < len(self.leaves):
            names = [leaf.name for leaf in self.leaves]
            twice = next(name for name in names if names.count(name) > 1)
            raise UnsupportedSpace(
                f"two entries of the observation space {space} are both called {twice!r}, because / joins the names of "
                "nested entries: rename one of them"
            )
        self.has_mask = isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces
        if not self.leaves:
            raise UnsupportedSpace(
                f"the observation space {space} has no entry besides the action mask: give the network something to see"
            )
        first = self.leaves[0]
        self.plain = not first.path and first.choices is None
        self.float_names = tuple(name for name, spec in self.specs.items() if np.dtype(spec.dtype).kind == "f")

    def write(self, observation: Any, views: Mapping[str, Array]) -> None:
        """Write a whole batch (leading axis ``B``, from a vector environment) into ``[B, ...]`` views.

        Raises:
            UnsupportedSpace: As :meth:`write_row`.
        """
        for leaf in self.leaves:
            view = views[leaf.name]
            array = np.asarray(_entry(leaf, observation))
            if leaf.choices is None:
                if array.shape != view.shape and not _is_alike(leaf, array.shape[1:], array.size == view.size):
                    raise _misfit(leaf, f"the batch of {len(view)} rows has shape {array.shape}")
                if array.dtype != view.dtype:
                    _check_numbers(leaf, array)
                np.copyto(view, array.reshape(view.shape), casting="unsafe")
            else:
                fits = array.size == len(view) * len(leaf.choices.n)
                columns = leaf.choices.columns(array.reshape(len(view), -1)) if fits else None
                if columns is None:
                    raise _misfit(leaf, f"it is {array.tolist()}")
                view.fill(0)
                np.put_along_axis(view, columns, 1, axis=1)

    def write_row(self, observation: Any, row: int, views: Mapping[str, Array]) -> None:
        """Write one environment's observation into row ``row`` of ``[B, ...]`` views.

        Numbers slightly outside of a Box's bounds are accepted, because many environments return them.

        Raises:
            UnsupportedSpace: An entry is missing or has another shape, a choice does not exist, or numbers of an
                integer space are fractions or too large.
        """
        for leaf in self.leaves:
            view = views[leaf.name]
            array = np.asarray(_entry(leaf, observation))
            if leaf.choices is None:
                if array.shape != leaf.spec.shape:
                    _check_shape(leaf, array)
                if array.dtype != view.dtype:
                    _check_numbers(leaf, array)
                view[row] = array
            else:
                columns = leaf.choices.columns(array.ravel()) if array.size == len(leaf.choices.n) else None
                if columns is None:
                    raise _misfit(leaf, f"it is {array.tolist()}")
                view[row] = 0
                view[row, columns] = 1

    def check(self, observation: Any) -> None:
        """Raise if one environment's observation does not fit its space.

        Raises:
            UnsupportedSpace: As :meth:`write_row`.
        """
        for leaf in self.leaves:
            array = np.asarray(_entry(leaf, observation))
            _check_shape(leaf, array)
            _check_numbers(leaf, array)
            if leaf.choices is not None and leaf.choices.columns(array.ravel()) is None:
                raise _misfit(leaf, f"it is {array.tolist()}")

    def specs_with_scale(self, observation: Any) -> dict[str, ArraySpec]:
        """The specs, with how large the numbers of an observation are (``ArraySpec.seen``).

        Args:
            observation: Of one environment, or of a batch.
        """
        return {
            leaf.name: leaf.spec
            if leaf.choices is not None
            else replace(leaf.spec, seen=float(np.abs(np.asarray(_entry(leaf, observation), float)).max(initial=0.0)))
            for leaf in self.leaves
        }

    def mask_of(self, observation: Any) -> Any:
        """Return the raw mask in an observation (only with ``has_mask``); None if it has none, as a final one may."""
        return observation.get(ACTION_MASK)


def _entry(leaf: Leaf, observation: Any) -> Any:
    """Return a leaf's part of an observation."""
    value = observation
    try:
        for key in leaf.path:
            value = value[key]
    except (KeyError, IndexError, TypeError) as error:
        raise _misfit(leaf, f"there is no such entry in a {type(observation).__name__} ({error!r})") from error
    return value


def _check_shape(leaf: Leaf, array: Array) -> None:
    if array.shape != (leaf.space.shape or ()) and not _is_alike(leaf, array.shape, array.size == 1):
        raise _misfit(leaf, f"it has shape {array.shape}")


def _is_alike(leaf: Leaf, shape: tuple[int, ...], has_size: bool) -> bool:
    """Whether an observation has its space's shape, or is a single number with another number of axes of length 1."""
    own = leaf.space.shape or ()
    return has_size and (shape == own or own in ((), (1,)))


def _check_numbers(leaf: Leaf, array: Array) -> None:
    """Raise if casting would change the numbers."""
    kind = array.dtype.kind
    if kind not in "biuf":
        raise _misfit(leaf, f"it is of {array.dtype}")
    if leaf.choices is None and leaf.spec.dtype.startswith("float"):
        return
    if kind == "f":
        raise _misfit(leaf, f"it is of {array.dtype}, which would be truncated to integers")
    if leaf.choices is not None or kind == "b" or not array.size:
        return
    least, most = (
        (0, 1) if leaf.spec.dtype == "bool" else (np.iinfo(leaf.spec.dtype).min, np.iinfo(leaf.spec.dtype).max)
    )
    if array.min() < least or array.max() > most:
        raise _misfit(leaf, f"it has {array.min()} to {array.max()}, and {leaf.spec.dtype} holds {least} to {most}")


def _misfit(leaf: Leaf, what: str) -> UnsupportedSpace:
    return UnsupportedSpace(
        f"observation {leaf.name!r} does not fit its space {leaf.space}: {what}; fix the environment's "
        "observation_space, or the result of its reset and step"
    )


def _without_choice(space: spaces.Space[Any]) -> UnsupportedSpace:
    return UnsupportedSpace(
        f"action space {space} leaves nothing to choose: each component needs at least one number or one choice; leave "
        "empty components out of the action space"
    )


def _heads(space: spaces.Space[Any]) -> tuple[Literal["discrete", "multidiscrete", "box"], tuple[Head, ...]]:
    kind, heads = _make_heads(space)
    if any(isinstance(head, CategoricalHead) and head.n > _MOST_CHOICES for head in heads):
        raise UnsupportedSpace(
            f"action space {space} has a component of more than {_MOST_CHOICES:,} choices; use "
            "fewer, or continuous actions (a Box)"
        )
    if not heads or any(not (head.n if isinstance(head, CategoricalHead) else head.size) > 0 for head in heads):
        raise _without_choice(space)
    return kind, heads


def _make_heads(space: spaces.Space[Any]) -> tuple[Literal["discrete", "multidiscrete", "box"], tuple[Head, ...]]:
    if isinstance(space, spaces.Discrete):
        return "discrete", (CategoricalHead(n=int(space.n), start=int(space.start)),)
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        start = np.asarray(space.start).ravel()
        return "multidiscrete", tuple(
            CategoricalHead(n=int(n), start=int(s)) for n, s in zip(space.nvec, start, strict=True)
        )
    if isinstance(space, spaces.MultiBinary) and len(space.shape) == 1:
        return "multidiscrete", tuple(CategoricalHead(n=2) for _ in range(space.shape[0]))
    if isinstance(space, spaces.Box) and np.dtype(space.dtype).kind == "f":
        low, high = (tuple(float(v) for v in bound.ravel()) for bound in (space.low, space.high))
        return "box", (BoxHead(low=low, high=high, shape=space.shape, dtype=str(np.dtype(space.dtype))),)
    raise UnsupportedSpace(
        f"action space {space}: Discrete, one-dimensional MultiDiscrete and MultiBinary, Box of floats, and Tuple and "
        "Dict of those are allowed; wrap the environment with an action wrapper that flattens or discretises it"
    )


def action_spec(space: spaces.Space[Any]) -> ActionSpec:
    """Return the policy heads for the action space of one environment.

    ``MultiBinary`` becomes heads of two choices each. A ``Dict``'s components are in the space's own order.

    Raises:
        UnsupportedSpace: The space is not Discrete, MultiDiscrete, MultiBinary, Box or a Tuple or Dict of them.
    """
    if isinstance(space, (spaces.Tuple, spaces.Dict)):
        keys = tuple(space.spaces) if isinstance(space, spaces.Dict) else ()
        inner = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        found = [_heads(component) for component in inner]
        if not found:
            raise _without_choice(space)
        return ActionSpec(
            heads=tuple(head for _, heads in found for head in heads),
            structure="dict" if keys else "tuple",
            components=tuple((kind, len(heads)) for kind, heads in found),
            keys=keys,
        )
    kind, heads = _heads(space)
    return ActionSpec(heads=heads, structure=kind)

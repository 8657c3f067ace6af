"""The arguments of ``add``: which arrays it requires, and their conversion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from rollmill.replay.fields import array_of, flattened
from rollmill.replay.settings import FLAGS, Settings


class Arguments:
    """The arguments of ``add``, by name.

    Attributes:
        count: How many are required; ``truncated`` and ``valid`` are optional.
        take: Returns the fields of a mapping, in their order. Raises KeyError.
        take_next: Likewise the next of fields that have one.
    """

    def __init__(self, settings: Settings) -> None:
        self._fields = settings.fields
        self._with_next = [field for field in settings.fields if field.name in settings.next_of]
        self._is_linked = settings.is_linked
        self._num_envs = settings.num_envs
        names, next_names = [field.name for field in self._fields], [f"next_{field.name}" for field in self._with_next]
        self.take, self.take_next = _taker(names), _taker(next_names)
        self._needed = names + next_names + (["terminated"] if self._is_linked else [])
        self.count = len(self._needed)

    def converted(self, arrays: Mapping[str, Any]) -> tuple[Any, ...]:
        """Arguments of the native ring's ``add_step`` or ``add``.

        Raises:
            ValueError: One is missing or unknown, or has a wrong shape, or a dtype that is not converted.
        """
        given = {name: value for name, value in flattened(arrays).items() if value is not None}
        rows = self._num_envs if self._is_linked else None
        if missing := [name for name in self._needed if name not in given]:
            raise ValueError(f"add was not given {', '.join(missing)}; it takes {self._signature()}")
        columns = []
        for field in self._fields:
            column = array_of(field.name, given.pop(field.name), field.shape, field.dtype, rows)
            rows = len(column)
            columns.append(column)
        followers = [
            array_of(name := f"next_{field.name}", given.pop(name), field.shape, field.dtype, rows)
            for field in self._with_next
        ]
        flags = [
            array_of(name, given.pop(name), (), np.dtype(bool), rows) if name in given else None
            for name in (FLAGS if self._is_linked else ())
        ]
        if given:
            raise ValueError(f"add does not know {', '.join(given)}; it takes {self._signature()}")
        return (tuple(columns), tuple(followers), *flags) if self._is_linked else (tuple(columns),)

    def _signature(self) -> str:
        return ", ".join(self._needed + (["truncated (optional)", "valid (optional)"] if self._is_linked else []))


def _taker(names: Sequence[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """A function that returns these entries of a mapping as a tuple."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda arrays: tuple(arrays[name] for name in names)

"""Numbers that environments give in ``info["metrics"]``, and returns of agents: added up here, averaged in rows."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

METRICS = "metrics"
"""The entry of ``info``."""

_MOST_NAMES = 256
_MORE = "more names"


class EnvMetrics(NamedTuple):
    """What the environments of a rollout worker have given since its last message.

    Attributes:
        sums: Name -> sum and count.
        refused: What is no number -> why it is left out.
        returns: Agent -> sum of the returns of its episodes that have ended, and their number.
    """

    sums: Mapping[str, tuple[float, int]]
    refused: Mapping[str, str]
    returns: Mapping[str, tuple[float, int]]

    @classmethod
    def merged(cls, parts: Iterable[EnvMetrics]) -> EnvMetrics:
        """Those of several groups, or of several messages."""
        sums: dict[str, tuple[float, int]] = {}
        returns: dict[str, tuple[float, int]] = {}
        refused: dict[str, str] = {}
        for part in parts:
            refused |= part.refused
            for whole, of_part in ((sums, part.sums), (returns, part.returns)):
                for name, (total, count) in of_part.items():
                    before, times = whole.get(name, (0.0, 0))
                    whole[name] = before + total, times + count
        return cls(sums, refused, returns)


class InfoMetrics:
    """Adds up the metrics of one group's environments. NaN stands for nothing.

    Attributes:
        counted: bool ``[B]``, the rows whose metrics are added up; None for all. An evaluation changes it.
    """

    def __init__(self) -> None:
        self.counted: NDArray[np.bool_] | None = None
        self._sums: dict[str, list[float]] = {}
        self._refused: dict[str, str] = {}
        self._known_refused: set[str] = set()

    def add(self, metrics: object, row: int) -> None:
        """Adds ``info["metrics"]`` of a row: name -> number."""
        if self.counted is not None and not self.counted[row]:
            return
        if not isinstance(metrics, Mapping):
            self._refuse("", metrics)
            return
        for name, value in metrics.items():
            number = _number(value)
            if number is None:
                self._refuse(name, value)
            elif not math.isnan(number):
                self._add(name, number, 1)

    def add_rows(self, metrics: object, num_rows: int) -> None:
        """Adds ``info["metrics"]`` of a vector environment.

        Args:
            metrics: Name -> ``[B]``, and ``_NAME`` -> bool ``[B]``: rows that have the number, all without it.
            num_rows: B.
        """
        if not isinstance(metrics, Mapping):
            self._refuse("", metrics)
            return
        for name, value in metrics.items():
            if isinstance(name, str) and name.startswith("_") and name[1:] in metrics:
                continue
            try:
                rows, given = np.asarray(value), metrics.get(f"_{name}")
            except ValueError:  # rows of unequal length
                self._refuse(name, value)
                continue
            if rows.shape != (num_rows,) or (rows.dtype.kind not in "biuf" and given is None):
                self._refuse(name, value)
                continue
            mask = self.counted
            if given is not None:
                mask = np.asarray(given, bool) if mask is None else mask & np.asarray(given, bool)
            chosen = rows if mask is None else rows[mask]
            if chosen.dtype.kind not in "biuf":  # Gymnasium's of Python objects, None where there is nothing.
                assert mask is not None  # Without one they are refused above.
                for row, item in zip(np.flatnonzero(mask).tolist(), chosen.tolist(), strict=True):
                    self.add({name: item}, row)
                continue
            chosen = chosen[~np.isnan(chosen)]
            if len(chosen):
                self._add(name, float(chosen.sum(dtype=np.float64)), len(chosen))

    def take(self) -> EnvMetrics:
        """What was added since the last call."""
        if not self._sums and not self._refused:
            return _NOTHING
        sums = {name: (total, int(count)) for name, (total, count) in self._sums.items()}
        taken = EnvMetrics(sums, self._refused, {})
        self._sums, self._refused = {}, {}
        return taken

    def _add(self, name: object, total: float, count: int) -> None:
        entry = self._sums.get(name)  # type: ignore[call-overload]  # what is no string is in none of them
        if entry is None:
            if not isinstance(name, str) or len(self._sums) >= _MOST_NAMES:
                self._refuse(name, total)
                return
            entry = self._sums[name] = [0.0, 0.0]
        entry[0] += total
        entry[1] += count

    def _refuse(self, name: object, value: object) -> None:
        is_one_too_many = name not in self._sums and len(self._sums) >= _MOST_NAMES
        key = _MORE if is_one_too_many else str(name)
        if key in self._known_refused or len(self._known_refused) >= _MOST_NAMES:
            return
        self._known_refused.add(key)
        if name == "":
            why = f"info[{METRICS!r}] is {_short(value)}: give a dict of names and numbers"
        elif not isinstance(name, str):
            why = f"info[{METRICS!r}] has the key {name!r}: give strings as names"
        elif is_one_too_many:
            why = f"info[{METRICS!r}] has more than {_MOST_NAMES} names: {name!r} and further ones are left out"
        else:
            why = f"info[{METRICS!r}][{name!r}] is {_short(value)}: give a number; it is left out"
        self._refused[key] = why


_NOTHING = EnvMetrics({}, {}, {})


def _number(value: Any) -> float | None:
    """A Python or NumPy number, or an array without axes; None for anything else."""
    if isinstance(value, Real | np.bool_):
        with contextlib.suppress(OverflowError):  # an int without bounds
            return float(value)
        return None
    if isinstance(value, np.ndarray) and not value.shape and value.dtype.kind in "biuf":
        return float(value)
    return None


def _short(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else f'{text[:57]}...'} ({type(value).__name__})"

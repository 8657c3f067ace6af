"""The space of a sweep: which settings vary, and in which range.

One table for each setting, by its key or the last part of it::

    [learner.learning_rate]
    low = 1e-5
    high = 1e-2
    log = true

    [learner.minibatches]
    choices = [2, 4, 8]
"""

from __future__ import annotations

import itertools
import json
import math
import random
import tomllib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rollmill.settings.config import Config
from rollmill.settings.option_values import OptionError, coerce, format_value, plain, type_name
from rollmill.settings.options import annotation_of, flatten, full_keys

_RANGE = ("low", "high", "log", "step")
_CHOICES = "choices"
_PARTS = (*_RANGE, _CHOICES)
_ALLOWED = "give low and high, and optionally log = true or step, or choices = [...]"
_MOST_GRID_POINTS = 10_000
# Values of a range of all real numbers among which an untried point is chosen.
_REAL_VALUES = 1_000_000

Point = tuple[str, ...]


class SpaceError(ValueError):
    """The space of a sweep is not valid."""


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, both included.

    Attributes:
        key: Complete key of the setting.
        low: Smallest value.
        high: Largest value.
        is_integer: Whether the setting is an integer.
        log: Whether to draw uniformly in the logarithm.
        step: Distance of neighbouring values from ``low`` on; None for all numbers, or all integers.
    """

    key: str
    low: float
    high: float
    is_integer: bool
    log: bool = False
    step: float | None = None

    @property
    def ends(self) -> tuple[Any, ...]:
        """Values that stand for all others when they are checked."""
        return (self.low, self.high)

    @property
    def size(self) -> int | None:
        """How many values there are; None for all real numbers."""
        if self.step is None and not self.is_integer:
            return None
        return math.floor((self.high - self.low) / (self.step or 1) + 1e-9) + 1

    @property
    def grid(self) -> tuple[Any, ...] | None:
        """All values; None if there is no step."""
        if self.size is None or self.size > _MOST_GRID_POINTS or (self.is_integer and self.log):
            return None
        return tuple(map(self.value_at, range(self.size)))

    def value_at(self, place: int) -> Any:
        """The value at a place, from 0 on; of all real numbers, one of a million."""
        if self.is_integer:
            return int(self.low) + int(self.step or 1) * place
        if self.step is not None:
            # 0.1 + 2 * 0.1 is 0.30000000000000004, above a high of 0.3.
            return min(self.high, float(f"{self.low + self.step * place:.12g}"))
        share = place / (_REAL_VALUES - 1)
        value = self.low * (self.high / self.low) ** share if self.log else self.low + (self.high - self.low) * share
        return min(self.high, max(self.low, value))

    def describe(self) -> str:
        """Say in words what is searched."""
        step = "" if self.step is None else f", step {format_value(self.step)}"
        return f"{format_value(self.low)} to {format_value(self.high)}{', log' if self.log else ''}{step}"


@dataclass(frozen=True)
class Choices:
    """Some values.

    Attributes:
        key: Complete key of the setting.
        values: The values, as JSON data.
    """

    key: str
    values: tuple[Any, ...]

    @property
    def ends(self) -> tuple[Any, ...]:
        """All values."""
        return self.values

    @property
    def size(self) -> int:
        """How many values there are."""
        return len(self.values)

    @property
    def grid(self) -> tuple[Any, ...]:
        """All values."""
        return self.values

    def value_at(self, place: int) -> Any:
        """The value at a place, from 0 on."""
        return self.values[place]

    def element(self, value: object) -> Any:
        """The choice that equals a value, which may be another type of number: 0.5 and 1.0 have 1.

        Raises:
            SpaceError: None does.
        """
        for known in self.values:
            if value == known and isinstance(value, bool) == isinstance(known, bool):
                return known
        raise SpaceError(f"{value!r} is no choice of {self.key}: give one of {self.describe()}.")

    def describe(self) -> str:
        """Say in words what is searched."""
        return " | ".join(map(format_value, self.values))


Dimension = Range | Choices


def read_space(path: Path | str) -> dict[str, Any]:
    """Read a space file as nested tables.

    Raises:
        SpaceError: It cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise SpaceError(
            f"{path} cannot be read ({error.strerror}): give a TOML file of settings (--space)."
        ) from error
    except ValueError as error:
        raise SpaceError(f"{path} is not a TOML file ({error}).") from error


def parse_space(
    tables: Mapping[str, Any], config: Config, check: Callable[[Mapping[str, object]], object]
) -> tuple[Dimension, ...]:
    """Make the space of its tables.

    Args:
        tables: Key -> what is searched; nested as TOML nests dotted keys, or flat.
        config: The configuration that the settings belong to.
        check: Called with one value of the space, and those that the configuration has of the other settings; raises
            ValueError where it is refused.

    Raises:
        SpaceError: No setting, one that is unknown or given twice, a wrong type, or an empty range.
    """
    found: dict[str, Dimension] = {}
    for given, table in _leaves(tables, ""):
        try:
            key = next(iter(full_keys(config, {given: None})))
            _check_no_group(key, table, config)
            annotation = annotation_of(config, given)
        except OptionError as error:
            raise SpaceError(f"the space: {error}") from error
        if key in found:
            raise SpaceError(f"the space has {key} twice: give each setting one table.")
        dimension = _dimension(key, table, annotation)
        found[key] = dimension
    # Together with the others, because one that is searched may decide whether another has an effect.
    values = {key: value for key, value in flatten(config).items() if key in found}
    for key, dimension in found.items():
        for value in dimension.ends:
            try:
                check({**values, key: value})
            except ValueError as error:
                raise SpaceError(f"the space: {key}={format_value(value)} is refused: {error}") from error
    if not found:
        raise SpaceError("the space is empty: give one table for each setting, such as [learner.learning_rate].")
    return tuple(found.values())


def grid_of(space: Sequence[Dimension]) -> list[dict[str, Any]]:
    """All points of a space of choices and steps, in a fixed order.

    Raises:
        SpaceError: A setting has a range without a step, or there are more than 10,000 points.
    """
    for dimension in space:
        if dimension.grid is None:
            raise SpaceError(
                f"the grid needs a few values of {dimension.key}, which has a range ({dimension.describe()}): give it "
                "choices or a step, or take another sampler."
            )
    values = [cast("tuple[Any, ...]", dimension.grid) for dimension in space]
    if (count := math.prod(map(len, values))) > _MOST_GRID_POINTS:
        raise SpaceError(
            f"the grid has {count:,} points, more than {_MOST_GRID_POINTS:,}: give fewer values, or take another "
            "sampler."
        )
    return [dict(zip((d.key for d in space), point, strict=True)) for point in itertools.product(*values)]


def size_of(space: Sequence[Dimension]) -> int | None:
    """How many points a space has; None if one of its ranges is of all real numbers."""
    sizes = [dimension.size for dimension in space]
    return None if None in sizes else math.prod(cast("list[int]", sizes))


def point_of(space: Sequence[Dimension], settings: Mapping[str, Any]) -> Point:
    """What is equal for equal settings; steps of real numbers may differ by rounding."""
    values = [settings.get(dimension.key) for dimension in space]
    return tuple(f"{value:.12g}" if isinstance(value, float) else json.dumps(value) for value in values)


def untried_point(space: Sequence[Dimension], tried: Container[Point], seed: int) -> dict[str, Any] | None:
    """A point of the space that was not tried; None if there is none.

    It counts through the points from a random one on: it looks at one point more than were tried, at most.

    Args:
        space: The space.
        tried: :func:`point_of` those that were.
        seed: Key of the random point.
    """
    sizes = [dimension.size or _REAL_VALUES for dimension in space]
    total = math.prod(sizes)
    first = random.Random(seed).randrange(total)
    for step in range(total):
        place, point = (first + step) % total, {}
        for dimension, size in zip(space, sizes, strict=True):
            place, own = divmod(place, size)
            point[dimension.key] = dimension.value_at(own)
        if point_of(space, point) not in tried:
            return point
    return None


def is_on_step(dimension: Dimension, value: Any) -> bool:
    """Whether a value is one of those that :attr:`Range.size` counts: a start may lie between two steps."""
    if isinstance(dimension, Choices) or not contains(dimension, value):
        return contains(dimension, value)
    nearest = dimension.value_at(round((value - dimension.low) / (dimension.step or 1)))
    return math.isclose(nearest, value, rel_tol=1e-9, abs_tol=1e-12)


def contains(dimension: Dimension, value: object) -> bool:
    """Whether a value is in a dimension; steps do not count."""
    if isinstance(dimension, Choices):
        try:
            dimension.element(value)
        except SpaceError:
            return False
        return True
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and dimension.low <= cast("float", value) <= dimension.high


def _leaves(tables: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Key and table of each setting."""
    for name, table in tables.items():
        key = prefix + name
        if not isinstance(table, Mapping):
            raise _no_table(key, table)
        if not table or any(not isinstance(value, Mapping) for value in table.values()):
            yield key, table
        else:
            yield from _leaves(table, f"{key}.")


def _check_no_group(key: str, table: Mapping[str, Any], config: Config) -> None:
    """Refuse the table of a group of settings, such as ``[learner]``.

    Raises:
        OptionError: A name in the table is no setting of the group.
        SpaceError: A setting of the group has a value instead of a table, or the table has low, high or choices.
    """
    values = flatten(config)
    members = [name for name in values if name.startswith(f"{key}.")]
    if key in values or not members:
        return
    for name, value in table.items():
        if name not in _PARTS:
            annotation_of(config, f"{key}.{name}")
            raise _no_table(f"{key}.{name}", value)
    raise SpaceError(
        f"the space: {key} is a group of settings; given {dict(table)!r}: give one of its settings a table, such as "
        f"[{members[0]}]."
    )


def _no_table(key: str, value: object) -> SpaceError:
    return SpaceError(f"the space: {key} = {value!r} is not a table: {_ALLOWED} under [{key}].")


def _dimension(key: str, table: Mapping[str, Any], annotation: object) -> Dimension:
    if unknown := [part for part in table if part not in _PARTS]:
        raise SpaceError(f"the space: [{key}] has {unknown[0]!r}, which is unknown: {_ALLOWED}.")
    if _CHOICES in table:
        if others := [part for part in table if part != _CHOICES]:
            raise SpaceError(f"the space: [{key}] has both choices and {others[0]}: {_ALLOWED}.")
        values = table[_CHOICES]
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise SpaceError(f"the space: [{key}] has choices = {values!r}: give a list with at least one value.")
        plain = [_coerced(_jsonable(value), annotation, key) for value in values]
        if len({json.dumps(value) for value in plain}) < len(plain):
            raise SpaceError(f"the space: [{key}] has a choice twice: {plain!r}.")
        return Choices(key, tuple(plain))
    if missing := [part for part in ("low", "high") if part not in table]:
        raise SpaceError(f"the space: [{key}] has no {' and no '.join(missing)}: {_ALLOWED}.")
    return _range(key, table, annotation)


def _range(key: str, table: Mapping[str, Any], annotation: object) -> Range:
    low, high, step, log = (plain(table.get(part)) for part in ("low", "high", "step", "log"))
    log = False if log is None else log
    for part, value in (("low", low), ("high", high), ("step", step)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value != value):
            raise SpaceError(f"the space: [{key}] has {part} = {value!r}: give a number.")
    if not isinstance(log, bool):
        raise SpaceError(f"the space: [{key}] has log = {log!r}: give true or false.")
    is_integer = not _takes(0.5, annotation)
    if is_integer and not _takes(1, annotation):
        raise SpaceError(
            f"the space: {key} takes {type_name(annotation)}, not a range of numbers: give choices = [...]."
        )
    if annotation is object:  # An argument of the environment: what its ends are.
        is_integer = all(isinstance(value, int) for value in (low, high) if value is not None)
    if is_integer:
        for part, value in (("low", low), ("high", high), ("step", step)):
            if value is not None and not float(value).is_integer():
                raise SpaceError(f"the space: [{key}] has {part} = {value!r}: {key} takes integers.")
        low, high, step = int(low), int(high), None if step is None else int(step)
    else:
        low, high = float(low), float(high)
    if not low < high or not math.isfinite(high - low):
        raise SpaceError(f"the space: [{key}] from {low!r} to {high!r} is empty: give finite ends, low below high.")
    if log and low <= 0:
        raise SpaceError(f"the space: [{key}] has log = true with low = {low!r}: give a low above 0.")
    if log and step is not None:
        raise SpaceError(f"the space: [{key}] has both log = true and a step: give one of them.")
    if step is not None and not 0 < step <= high - low:
        raise SpaceError(f"the space: [{key}] has step = {step!r}: give a number above 0 and at most {high - low!r}.")
    return Range(key, low, high, is_integer, log, step)


def _takes(value: object, annotation: object) -> bool:
    try:
        coerce(value, annotation, "")
    except OptionError:
        return False
    return True


def _coerced(value: object, annotation: object, key: str) -> Any:
    """The value as the configuration has it: 0 for a real number is 0.0."""
    try:
        # An entry of a mapping may be any JSON value, a text as it is.
        found = coerce(value, annotation, key, text=isinstance(value, str) and annotation is not object)
    except OptionError as error:
        raise SpaceError(f"the space: {error}") from error
    is_number = isinstance(value, int | float) and isinstance(found, int | float) and math.isfinite(found)
    return found if is_number else value


def _jsonable(value: object) -> Any:
    try:
        return json.loads(json.dumps(plain(value)))
    except (TypeError, ValueError) as error:
        raise SpaceError(f"the space: the choice {value!r} cannot be written as JSON ({error}).") from error

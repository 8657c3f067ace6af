"""Throughput curves: cores -> steps a second, measured or given, and where two of them meet (PAL, equation 5).

With ``f_a(x)`` the agent steps a second that ``x`` cores collect, ``f_l(x)`` the SGD steps a second that ``x`` cores
learn, ``u`` the agent steps for each SGD step (the update interval), and ``M`` cores::

    f_a(x_a) = u f_l(x_l),    x_a + x_l <= M        (Zhang et al. 2021, arXiv:2110.01101, equation 5)

A curve gives the rate of *at most* x cores, so it never decreases: decreasing points are averaged with their neighbours
(isotonic regression). It is linear between points and from the origin to the first point, because processes share
cores. After the last point it is constant, because nothing is known there.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# Limits of rates and cores, so that their products stay finite.
_SMALLEST, LARGEST = 1e-6, 1e12
_MOST_CORES = 65_536
_ACTORS, _LEARNERS = "agent_steps_per_second", "sgd_steps_per_second"
_INTERVAL = "update_interval"
_DIVISION = ("policy_workers", "num_envs", "envs_per_group")


class CurveError(ValueError):
    """An invalid curve."""


@dataclass(frozen=True)
class Curve:
    """Steps a second over cores.

    Attributes:
        cores: Ascending, above 0.
        rates: Steps a second with so many cores; positive, not falling.
    """

    cores: tuple[float, ...]
    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check the points.

        Raises:
            CurveError: The points are not a curve; the message names the point.
        """
        if not self.cores or len(self.cores) != len(self.rates):
            raise CurveError(
                f"a curve has {len(self.cores)} numbers of cores and {len(self.rates)} rates: give one rate for each "
                "number of cores, and one at least."
            )
        for name, values in (("cores", self.cores), ("rates", self.rates)):
            for value in values:
                if isinstance(value, bool) or not isinstance(value, int | float):
                    raise CurveError(f"{name} of a curve hold {value!r}: give numbers.")
                if not _SMALLEST <= value <= LARGEST:
                    is_long = isinstance(value, int) and abs(value) > LARGEST
                    shown = f"an integer of {len(str(value))} digits" if is_long else repr(value)
                    raise CurveError(f"{name} of a curve hold {shown}: give numbers from {_SMALLEST} to {LARGEST:g}.")
        for before, after in itertools.pairwise(self.cores):
            if after <= before:
                raise CurveError(f"cores of a curve are {before:g}, then {after:g}: give each once, ascending.")
        for before, after in itertools.pairwise(self.rates):
            if after < before:
                raise CurveError(
                    f"rates of a curve fall from {before:g} to {after:g}: more cores can always be left idle; use "
                    "Curve.through, which averages such points."
                )

    @classmethod
    def through(cls, points: Iterable[tuple[float, float]]) -> Curve:
        """The non-decreasing curve with the least squared distance to (cores, rate); equal cores are averaged.

        Raises:
            CurveError: There are no points, or some are not positive numbers.
        """
        by_cores: dict[float, list[float]] = {}
        for x, rate in points:
            by_cores.setdefault(x, []).append(rate)
        # Pool adjacent violators: (cores in this block, sum of rates, their number).
        blocks: list[tuple[list[float], float, int]] = []
        for x in sorted(by_cores):
            blocks.append(([x], sum(by_cores[x]), len(by_cores[x])))
            while len(blocks) > 1 and blocks[-2][1] / blocks[-2][2] > blocks[-1][1] / blocks[-1][2]:
                (xs, total, count), (more, total_b, count_b) = blocks[-2], blocks.pop()
                blocks[-1] = (xs + more, total + total_b, count + count_b)
        pairs = [(x, total / count) for xs, total, count in blocks for x in xs]
        return cls(tuple(x for x, _ in pairs), tuple(rate for _, rate in pairs))

    def __call__(self, cores: Any) -> Any:
        """Steps a second with at most this many cores: a number of either, or an array."""
        return np.interp(cores, (0.0, *self.cores), (0.0, *self.rates))

    def least_cores(self, rate: float) -> float:
        """The fewest cores that reach a rate; infinity if none do."""
        # Where the curve is flat, its first point.
        rates, first = np.unique((0.0, *self.rates), return_index=True)
        return float(np.interp(rate, rates, np.array((0.0, *self.cores))[first], right=math.inf))


class Balance(NamedTuple):
    """A solution of PAL's equation 5, or the nearest to it.

    Attributes:
        actor_cores: x_a.
        learner_cores: x_l.
        steps_per_second: Agent steps a second: the smaller of f_a(x_a) and u f_l(x_l).
        limited_by: "actors" or "learners", whichever is the smaller; "both" where they are equal, as :func:`balance`
            makes them.
    """

    actor_cores: float
    learner_cores: float
    steps_per_second: float
    limited_by: str


def balance(actors: Curve, learners: Curve, *, update_interval: float, cores: float) -> Balance:
    """The crossing of f_a(x) and u f_l(M - x), exactly: both are linear between the points of either.

    Cores that are shared out in fractions are what a scheduler gives to processes that are not pinned. Where one side
    can never keep up, it gets what it can use and the other the fewest cores that keep pace with it.

    Args:
        actors: f_a.
        learners: f_l, in SGD steps.
        update_interval: u, agent steps for each SGD step.
        cores: M.
    """

    def gap(x: float) -> float:
        return float(actors(x) - update_interval * learners(cores - x))

    knots = {0.0, cores, *actors.cores, *(cores - x for x in learners.cores)}
    points = sorted(x for x in knots if 0 <= x <= cores)
    for left, right in itertools.pairwise(points):
        low, high = gap(left), gap(right)
        if low <= 0 <= high and high > low:
            x = left + (right - left) * -low / (high - low)
            rate = float(min(actors(x), update_interval * learners(cores - x)))
            # On a flat piece fewer do as well.
            least_a, least_l = actors.least_cores(rate * (1 - 1e-12)), learners.least_cores(rate / update_interval)
            return Balance(min(x, least_a), min(cores - x, least_l), rate, "both")
    raise AssertionError("f_a rises from 0 and f_l falls to 0, so they cross")


def check_cores(cores: object) -> None:
    """Raises CurveError unless a machine may have so many."""
    if not isinstance(cores, int) or isinstance(cores, bool) or not 1 <= cores <= _MOST_CORES:
        raise CurveError(f"cores={cores!r}: give the machine's cores, a whole number from 1 to {_MOST_CORES}.")


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Both sides of a machine, as a file has them.

    Attributes:
        cores: M.
        actors: f_a: agent steps a second, policy workers included.
        learners: f_l: SGD steps a second.
        policy_workers: How many of the actors' cores had them at each point of ``actors``; None if that is not known.
        num_envs: Environments with which ``actors`` were measured; likewise.
        envs_per_group: Likewise.
        update_interval: Agent steps for each SGD step of ``learners``, with the minibatch that they were measured
            with; likewise.
    """

    cores: int
    actors: Curve
    learners: Curve
    policy_workers: tuple[int, ...] | None = None
    num_envs: int | None = None
    envs_per_group: int | None = None
    update_interval: float | None = None

    def __post_init__(self) -> None:
        """Refuses a machine without cores, and actors that are divided as none can be.

        Raises:
            CurveError: Naming the number.
        """
        check_cores(self.cores)
        for name in _DIVISION:
            values = getattr(self, name)
            for value in values if isinstance(values, tuple) else () if values is None else (values,):
                if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST_CORES:
                    raise CurveError(f"actors.{name} has {value!r}: give whole numbers from 1 to {_MOST_CORES}.")
        if (interval := self.update_interval) is not None and not (
            isinstance(interval, int | float) and not isinstance(interval, bool) and 0 < interval <= LARGEST
        ):
            raise CurveError(f"update_interval={interval!r}: give agent steps for each SGD step, a number above 0.")
        if self.policy_workers is not None and len(self.policy_workers) != len(self.actors.cores):
            raise CurveError(
                f"actors.policy_workers has {len(self.policy_workers)} numbers, and there are "
                f"{len(self.actors.cores)} points: give one for each."
            )
        for serving, of in zip(self.policy_workers or (), self.actors.cores, strict=False):
            if serving > max(1, of - 1):
                raise CurveError(
                    f"actors.policy_workers has {serving} on {of:g} core(s): a rollout worker needs one, too; give "
                    f"{max(1, int(of) - 1)} at most."
                )
        if None not in (self.num_envs, self.envs_per_group) and self.num_envs % self.envs_per_group:  # type: ignore[operator]
            raise CurveError(
                f"actors.num_envs={self.num_envs} is no multiple of actors.envs_per_group={self.envs_per_group}."
            )

    def to_json(self) -> dict[str, Any]:
        """As JSON data; :meth:`from_json` gives an equal one back."""
        division = {name: value for name in _DIVISION if (value := getattr(self, name)) is not None}
        if self.policy_workers is not None:
            division["policy_workers"] = list(self.policy_workers)
        return {
            "cores": self.cores,
            "actors": {"cores": list(self.actors.cores), _ACTORS: list(self.actors.rates), **division},
            "learners": {"cores": list(self.learners.cores), _LEARNERS: list(self.learners.rates)},
            **({} if self.update_interval is None else {_INTERVAL: self.update_interval}),
        }

    @classmethod
    def from_json(cls, data: object, *, cores: int | None = None) -> Curves:
        """From JSON data.

        Args:
            data: ``{"cores": M, "actors": {"cores": [...], "agent_steps_per_second": [...]}, "learners": {"cores":
                [...], "sgd_steps_per_second": [...]}}``. Rates may fall: see :meth:`Curve.through`. Actors may also
                have ``"policy_workers": [...]``, ``"num_envs": N`` and ``"envs_per_group": B``, and the whole
                ``"update_interval": u``.
            cores: M, instead of the data's.

        Raises:
            CurveError: Something is missing, unknown or no curve.
        """
        if not isinstance(data, Mapping):
            raise CurveError(f"curves must be a JSON object, not {type(data).__name__}; see docs/tuning.md.")
        if unknown := sorted(set(data) - {"cores", "actors", "learners", _INTERVAL}):
            raise CurveError(f"curves have no {unknown[0]!r}: give cores, actors and learners.")
        given = data.get("cores") if cores is None else cores
        if given is None:
            raise CurveError("curves without cores: give the machine's number of cores in the file, or --cores.")
        actors = data.get("actors")
        division: dict[str, Any] = {}
        if isinstance(actors, Mapping):
            division = {name: actors[name] for name in _DIVISION if name in actors}
            actors = {name: value for name, value in actors.items() if name not in _DIVISION}
        if "policy_workers" in division:
            division["policy_workers"] = tuple(_list_of("actors.policy_workers", division["policy_workers"]))
        return cls(
            cores=given,
            actors=_side("actors", actors, _ACTORS),
            learners=_side("learners", data.get("learners"), _LEARNERS),
            update_interval=data.get(_INTERVAL),
            **division,
        )

    @classmethod
    def read(cls, path: Path | str, *, cores: int | None = None) -> Curves:
        """From a file; see :meth:`from_json`.

        Raises:
            CurveError: It cannot be read, or holds no curves.
        """
        try:
            data = json.loads(Path(path).read_text())
        except OSError as error:
            raise CurveError(f"{path} cannot be read ({error.strerror}): give a file of curves.") from error
        except (ValueError, RecursionError) as error:
            raise CurveError(f"{path} is not valid JSON ({error}); see docs/tuning.md.") from error
        try:
            return cls.from_json(data, cores=cores)
        except CurveError as error:
            raise CurveError(f"{path}: {error}") from error


def _list_of(name: str, values: object) -> Sequence[Any]:
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise CurveError(f"{name} must be a list of numbers, not {values!r}.")
    return values


def _side(side: str, content: object, rates: str) -> Curve:
    if not isinstance(content, Mapping) or set(content) != {"cores", rates}:
        raise CurveError(f"{side} must be an object with the lists cores and {rates}; given {content!r}.")
    for name, values in content.items():
        _list_of(f"{side}.{name}", values)
    xs, ys = content["cores"], content[rates]
    try:
        Curve(tuple(xs), tuple(range(1, len(ys) + 1)))  # Cores must ascend; rates may fall, and are averaged then.
        for y in ys:
            Curve((1,), (y,))
    except CurveError as error:
        raise CurveError(f"{side}: {error}") from error
    return Curve.through(zip(map(float, xs), map(float, ys), strict=True))

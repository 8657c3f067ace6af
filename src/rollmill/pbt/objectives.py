"""What population-based training compares policies by.

An objective of one's own is a function of a policy's newest results::

    def worst_tenth(results):
        returns = sorted(episode.episode_return for episode in results.episodes)
        return sum(returns[:10]) / 10

    rollmill.register_objective("worst_tenth", worst_tenth)

and then ``--import my_objectives.py --pbt.objective worst_tenth``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from numbers import Real

from rollmill.learning.results import RecentResults
from rollmill.runtime.definitions import Registry
from rollmill.scores import human_normalised, mean_capped
from rollmill.settings.value_checks import ConfigError

Objective = Callable[[RecentResults], float]
AUTO, RATING, TRUE_OBJECTIVE, SCORE = "auto", "rating", "true_objective", "score"
OF_MATCHES = (RATING, "win_rate")
"""Objectives that need matches instead of episodes."""


class ObjectiveError(ValueError):
    """Policies cannot be compared, because an objective is no finite number."""


def _mean_return(results: RecentResults) -> float:
    return statistics.fmean(results.mean_returns().values())


def _human_normalised(results: RecentResults) -> float:
    return mean_capped(results.mean_returns())


def _mean_objective(results: RecentResults) -> float:
    given = [episode.objective for episode in results.episodes if episode.objective is not None]
    if len(given) < len(results.episodes) or any(map(math.isnan, given)):
        raise ObjectiveError(
            "pbt.objective='true_objective', but the environment ended an episode without info['true_objective']: "
            "give a number in every step, of which the last one counts, or use another objective"
        )
    return statistics.fmean(given)


def _mean_points(results: RecentResults) -> float:
    return statistics.fmean(results.points)


OBJECTIVES: Registry[Objective] = Registry(
    "objective",
    {"return": _mean_return, SCORE: _human_normalised, TRUE_OBJECTIVE: _mean_objective, "win_rate": _mean_points},
    register="register_objective",
    reserved=(AUTO, RATING),
    error=ConfigError,
)


def register_objective(name: str, function: Objective) -> None:
    """Make ``pbt.objective=name`` compare policies by a function of their newest results.

    The learner must know it, so register it in a module that is imported everywhere (``--import``).

    Args:
        name: A new name.
        function: Gets a policy's newest results (:class:`rollmill.learning.results.RecentResults`): ``episodes``, each
            with ``episode_return``, ``episode_length`` and ``objective``, and ``points`` of its matches. There are
            ``pbt.window`` episodes; of several tasks, their share of each, at least 5. Returns a finite number; larger
            is better.

    Raises:
        ValueError: The name is taken by another function.
    """
    OBJECTIVES.register(name, function)


def check_objective(name: str, agents: int, environment: str, *, in_replay: bool, tasks: Sequence[str] = ()) -> None:
    """Refuse an objective that a run cannot compute.

    Args:
        name: The setting.
        agents: Agents of the environment.
        environment: Its name, for the message.
        in_replay: Whether the run learns from a replay.
        tasks: Names of several tasks.

    Raises:
        ConfigError: It is unknown, a task has no score of a human's, or there are no matches that it needs.
    """
    if name not in OBJECTIVES.names:
        OBJECTIVES.find(name, "pbt.objective")
    if name == TRUE_OBJECTIVE and in_replay:
        raise ConfigError(
            f"pbt.objective={name!r} in the replay regime, where only returns and lengths of episodes are known: use "
            "another objective, or regime='async'."
        )
    unknown = [task for task in tasks if human_normalised(task, 0.0) is None]
    if name == SCORE and (unknown or not tasks):
        raise ConfigError(
            f"pbt.objective={name!r} needs several tasks for which scores of random play and of a human are known, as "
            f"Atari games; {unknown[0] if unknown else environment} is not one: use 'return'."
        )
    if name in OF_MATCHES and agents < 2:
        raise ConfigError(
            f"pbt.objective={name!r} compares results of matches, but {environment} has one agent: use 'return' or an "
            "objective of your own."
        )


def score(objective: str, results: RecentResults, rating: float | None) -> float | None:
    """Return a policy's objective; None while it has too few results.

    Args:
        objective: A name, not "auto".
        results: The policy's newest results.
        rating: The policy's rating; None without matches.

    Raises:
        ObjectiveError: A function gave no finite number.
    """
    if not (results.has_all_points if objective in OF_MATCHES else results.has_all_episodes):
        return None
    if objective == RATING:
        return rating
    value: object = OBJECTIVES.find(objective, "pbt.objective")(results)
    if not isinstance(value, Real) or not math.isfinite(value):
        raise ObjectiveError(f"pbt.objective={objective!r} gave {value!r}: return a finite number")
    return float(value)

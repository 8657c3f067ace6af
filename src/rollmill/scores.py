"""Scores of humans and of random play in Atari's 57 games and DMLab-30's levels, and returns in units of them.

A task is an environment's name, such as ``atari/pong`` or ``dmlab/rooms_watermaze``. Case, underscores and hyphens do
not matter: ``atari/BattleZone`` is ``atari/battle_zone``.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Final, NamedTuple


class Scores(NamedTuple):
    """Undiscounted, unclipped return of one task: mean of random play, and of a human."""

    random: float
    human: float


# Wang et al. (2016, "Dueling network architectures", arXiv:1511.06581, table 2: no-op starts, episodes of at most 30
# minutes; the human is a professional tester), as in dqn_zoo/atari_data.py of google-deepmind/dqn_zoo. Names are ALE's.
_ATARI: Final[Mapping[str, Scores]] = {
    "atari/alien": Scores(227.8, 7127.7),
    "atari/amidar": Scores(5.8, 1719.5),
    "atari/assault": Scores(222.4, 742.0),
    "atari/asterix": Scores(210.0, 8503.3),
    "atari/asteroids": Scores(719.1, 47388.7),
    "atari/atlantis": Scores(12850.0, 29028.1),
    "atari/bank_heist": Scores(14.2, 753.1),
    "atari/battle_zone": Scores(2360.0, 37187.5),
    "atari/beam_rider": Scores(363.9, 16926.5),
    "atari/berzerk": Scores(123.7, 2630.4),
    "atari/bowling": Scores(23.1, 160.7),
    "atari/boxing": Scores(0.1, 12.1),
    "atari/breakout": Scores(1.7, 30.5),
    "atari/centipede": Scores(2090.9, 12017.0),
    "atari/chopper_command": Scores(811.0, 7387.8),
    "atari/crazy_climber": Scores(10780.5, 35829.4),
    "atari/defender": Scores(2874.5, 18688.9),
    "atari/demon_attack": Scores(152.1, 1971.0),
    "atari/double_dunk": Scores(-18.6, -16.4),
    "atari/enduro": Scores(0.0, 860.5),
    "atari/fishing_derby": Scores(-91.7, -38.7),
    "atari/freeway": Scores(0.0, 29.6),
    "atari/frostbite": Scores(65.2, 4334.7),
    "atari/gopher": Scores(257.6, 2412.5),
    "atari/gravitar": Scores(173.0, 3351.4),
    "atari/hero": Scores(1027.0, 30826.4),
    "atari/ice_hockey": Scores(-11.2, 0.9),
    "atari/jamesbond": Scores(29.0, 302.8),
    "atari/kangaroo": Scores(52.0, 3035.0),
    "atari/krull": Scores(1598.0, 2665.5),
    "atari/kung_fu_master": Scores(258.5, 22736.3),
    "atari/montezuma_revenge": Scores(0.0, 4753.3),
    "atari/ms_pacman": Scores(307.3, 6951.6),
    "atari/name_this_game": Scores(2292.3, 8049.0),
    "atari/phoenix": Scores(761.4, 7242.6),
    "atari/pitfall": Scores(-229.4, 6463.7),
    "atari/pong": Scores(-20.7, 14.6),
    "atari/private_eye": Scores(24.9, 69571.3),
    "atari/qbert": Scores(163.9, 13455.0),
    "atari/riverraid": Scores(1338.5, 17118.0),
    "atari/road_runner": Scores(11.5, 7845.0),
    "atari/robotank": Scores(2.2, 11.9),
    "atari/seaquest": Scores(68.4, 42054.7),
    "atari/skiing": Scores(-17098.1, -4336.9),
    "atari/solaris": Scores(1236.3, 12326.7),
    "atari/space_invaders": Scores(148.0, 1668.7),
    "atari/star_gunner": Scores(664.0, 10250.0),
    "atari/surround": Scores(-10.0, 6.5),
    "atari/tennis": Scores(-23.8, -8.3),
    "atari/time_pilot": Scores(3568.0, 5229.2),
    "atari/tutankham": Scores(11.4, 167.6),
    "atari/up_n_down": Scores(533.4, 11693.2),
    "atari/venture": Scores(0.0, 1187.5),
    "atari/video_pinball": Scores(16256.9, 17667.9),
    "atari/wizard_of_wor": Scores(563.5, 4756.5),
    "atari/yars_revenge": Scores(3092.9, 54576.9),
    "atari/zaxxon": Scores(32.5, 9173.3),
}

# dmlab30.py of google-deepmind/scalable_agent, the code of IMPALA (Espeholt et al. 2018, arXiv:1802.01561). Two levels
# differ between training and test; the scores are those of the test, by which both are normalised there.
_DMLAB: Final[Mapping[str, Scores]] = {
    "dmlab/rooms_collect_good_objects_train": Scores(0.073, 10.0),
    "dmlab/rooms_exploit_deferred_effects_train": Scores(8.501, 85.65),
    "dmlab/rooms_select_nonmatching_object": Scores(0.312, 65.9),
    "dmlab/rooms_watermaze": Scores(4.065, 54.0),
    "dmlab/rooms_keys_doors_puzzle": Scores(4.135, 53.8),
    "dmlab/language_select_described_object": Scores(-0.07, 389.5),
    "dmlab/language_select_located_object": Scores(1.929, 280.7),
    "dmlab/language_execute_random_task": Scores(-5.913, 254.05),
    "dmlab/language_answer_quantitative_question": Scores(-0.33, 184.5),
    "dmlab/lasertag_one_opponent_small": Scores(-0.224, 12.65),
    "dmlab/lasertag_three_opponents_small": Scores(-0.214, 18.55),
    "dmlab/lasertag_one_opponent_large": Scores(-0.083, 18.6),
    "dmlab/lasertag_three_opponents_large": Scores(-0.102, 31.5),
    "dmlab/natlab_fixed_large_map": Scores(2.173, 36.9),
    "dmlab/natlab_varying_map_regrowth": Scores(2.989, 24.45),
    "dmlab/natlab_varying_map_randomized": Scores(7.346, 42.35),
    "dmlab/skymaze_irreversible_path_hard": Scores(0.1, 100.0),
    "dmlab/skymaze_irreversible_path_varied": Scores(14.4, 100.0),
    "dmlab/psychlab_arbitrary_visuomotor_mapping": Scores(0.163, 58.75),
    "dmlab/psychlab_continuous_recognition": Scores(0.224, 58.3),
    "dmlab/psychlab_sequential_comparison": Scores(0.129, 39.5),
    "dmlab/psychlab_visual_search": Scores(0.085, 78.5),
    "dmlab/explore_object_locations_small": Scores(3.575, 74.45),
    "dmlab/explore_object_locations_large": Scores(4.673, 65.65),
    "dmlab/explore_obstructed_goals_small": Scores(6.76, 206.0),
    "dmlab/explore_obstructed_goals_large": Scores(2.61, 119.5),
    "dmlab/explore_goal_locations_small": Scores(7.66, 267.5),
    "dmlab/explore_goal_locations_large": Scores(3.14, 194.5),
    "dmlab/explore_object_rewards_few": Scores(2.073, 77.7),
    "dmlab/explore_object_rewards_many": Scores(2.438, 106.7),
}

ATARI_57: Final = tuple(_ATARI)
# Aitchison et al. (2022, "Atari-5: distilling the arcade learning environment down to five games", arXiv:2210.02019):
# the five games, and the five that extend them to Atari-10.
ATARI_10: Final = (
    "atari/amidar",
    "atari/battle_zone",
    "atari/bowling",
    "atari/double_dunk",
    "atari/frostbite",
    "atari/kung_fu_master",
    "atari/name_this_game",
    "atari/phoenix",
    "atari/qbert",
    "atari/riverraid",
)
# The levels that an agent is trained on.
DMLAB_30: Final = tuple(_DMLAB)

_LONG_NAME = "dmlab/contributed/dmlab30/"


def scores_of(name: str) -> Scores | None:
    """Scores of random play and of a human.

    Args:
        name: A task. Both versions of a DMLab-30 level, ``..._train`` and ``..._test``, have the scores of the test.

    Returns:
        None for other environments.
    """
    task = scored_task(name)
    return None if task is None else SCORES[task]


def human_normalised(name: str, value: float) -> float | None:
    """Return ``(value - random) / (human - random)``: 0 is random play, 1 is the human.

    Args:
        name: A task.
        value: Its raw return; for a published score, the mean of several episodes.

    Returns:
        None for environments without scores.
    """
    scores = scores_of(name)
    return None if scores is None else (value - scores.random) / (scores.human - scores.random)


def capped(name: str, value: float) -> float | None:
    """Return the human-normalised score, at most 1; arguments and result as of :func:`human_normalised`."""
    score = human_normalised(name, value)
    return None if score is None else min(score, 1.0)


def mean_capped(returns: Mapping[str, float]) -> float:
    """Mean of the capped human-normalised scores: DMLab-30's score (Espeholt et al. 2018), in units of a human's.

    As in IMPALA's code, the mean return of a task is normalised and capped, not that of each episode. The mean is over
    the given tasks: a score of the benchmark needs all 30.

    Args:
        returns: Task -> mean raw return.

    Raises:
        ValueError: No task is given, a task has no scores, or one is given twice.
    """
    return statistics.fmean(min(score, 1.0) for score in _normalised(returns))


def median(returns: Mapping[str, float]) -> float:
    """Median of the human-normalised scores, in which results on the 57 games are reported.

    Args:
        returns: Task -> mean raw return. Only the given tasks count.

    Raises:
        ValueError: No task is given, a task has no scores, or one is given twice.
    """
    return statistics.median(_normalised(returns))


def _normalised(returns: Mapping[str, float]) -> list[float]:
    names: dict[str, str] = {}
    found = []
    for name, value in returns.items():
        score, task = human_normalised(name, value), scored_task(name)
        if score is None or task is None:
            raise ValueError(f"{name!r} has no human score: give games of ATARI_57 or levels of DMLAB_30")
        if task in names:
            raise ValueError(f"{names[task]!r} and {name!r} are the same task: give one return for each task")
        names[task] = name
        found.append(score)
    if not found:
        raise ValueError("no returns were given: give the mean return of at least one task")
    return found


def _folded(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def scored_task(name: str) -> str | None:
    """Return the name in :data:`SCORES` of a task, which several spellings may have; None where it has no scores."""
    if name.startswith(_LONG_NAME):
        name = "dmlab/" + name.removeprefix(_LONG_NAME)
    return _TASKS.get(_folded(name))


SCORES: Final[Mapping[str, Scores]] = {**_ATARI, **_DMLAB}
# Folded name -> name.
_TASKS: Final[Mapping[str, str]] = {
    **{_folded(name): name for name in SCORES},
    **{_folded(name.removesuffix("train") + "test"): name for name in DMLAB_30 if name.endswith("_train")},
}

"""Scores of a human and of random play in 57 Atari games, and returns in units of their difference.

The scores are those of Wang et al. (2016, "Dueling network architectures", arXiv:1511.06581, table 2: no-op starts), as
the field has used them since. A game's name is ALE's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class AtariScores(NamedTuple):
    """Undiscounted, unclipped score of one game: mean of random play, and of a professional human tester."""

    random: float
    human: float


ATARI_SCORES: Mapping[str, AtariScores] = {
    "alien": AtariScores(227.8, 7127.7),
    "amidar": AtariScores(5.8, 1719.5),
    "assault": AtariScores(222.4, 742.0),
    "asterix": AtariScores(210.0, 8503.3),
    "asteroids": AtariScores(719.1, 47388.7),
    "atlantis": AtariScores(12850.0, 29028.1),
    "bank_heist": AtariScores(14.2, 753.1),
    "battle_zone": AtariScores(2360.0, 37187.5),
    "beam_rider": AtariScores(363.9, 16926.5),
    "berzerk": AtariScores(123.7, 2630.4),
    "bowling": AtariScores(23.1, 160.7),
    "boxing": AtariScores(0.1, 12.1),
    "breakout": AtariScores(1.7, 30.5),
    "centipede": AtariScores(2090.9, 12017.0),
    "chopper_command": AtariScores(811.0, 7387.8),
    "crazy_climber": AtariScores(10780.5, 35829.4),
    "defender": AtariScores(2874.5, 18688.9),
    "demon_attack": AtariScores(152.1, 1971.0),
    "double_dunk": AtariScores(-18.6, -16.4),
    "enduro": AtariScores(0.0, 860.5),
    "fishing_derby": AtariScores(-91.7, -38.7),
    "freeway": AtariScores(0.0, 29.6),
    "frostbite": AtariScores(65.2, 4334.7),
    "gopher": AtariScores(257.6, 2412.5),
    "gravitar": AtariScores(173.0, 3351.4),
    "hero": AtariScores(1027.0, 30826.4),
    "ice_hockey": AtariScores(-11.2, 0.9),
    "jamesbond": AtariScores(29.0, 302.8),
    "kangaroo": AtariScores(52.0, 3035.0),
    "krull": AtariScores(1598.0, 2665.5),
    "kung_fu_master": AtariScores(258.5, 22736.3),
    "montezuma_revenge": AtariScores(0.0, 4753.3),
    "ms_pacman": AtariScores(307.3, 6951.6),
    "name_this_game": AtariScores(2292.3, 8049.0),
    "phoenix": AtariScores(761.4, 7242.6),
    "pitfall": AtariScores(-229.4, 6463.7),
    "pong": AtariScores(-20.7, 14.6),
    "private_eye": AtariScores(24.9, 69571.3),
    "qbert": AtariScores(163.9, 13455.0),
    "riverraid": AtariScores(1338.5, 17118.0),
    "road_runner": AtariScores(11.5, 7845.0),
    "robotank": AtariScores(2.2, 11.9),
    "seaquest": AtariScores(68.4, 42054.7),
    "skiing": AtariScores(-17098.1, -4336.9),
    "solaris": AtariScores(1236.3, 12326.7),
    "space_invaders": AtariScores(148.0, 1668.7),
    "star_gunner": AtariScores(664.0, 10250.0),
    "surround": AtariScores(-10.0, 6.5),
    "tennis": AtariScores(-23.8, -8.3),
    "time_pilot": AtariScores(3568.0, 5229.2),
    "tutankham": AtariScores(11.4, 167.6),
    "up_n_down": AtariScores(533.4, 11693.2),
    "venture": AtariScores(0.0, 1187.5),
    "video_pinball": AtariScores(16256.9, 17667.9),
    "wizard_of_wor": AtariScores(563.5, 4756.5),
    "yars_revenge": AtariScores(3092.9, 54576.9),
    "zaxxon": AtariScores(32.5, 9173.3),
}


def human_normalised(env: str, score: float) -> float | None:
    """Return ``(score - random) / (human - random)``: 0 is random play, 1 is the human.

    Args:
        env: An environment's name, ``atari/<game>``.
        score: Raw return.

    Returns:
        None for environments other than the 57 games.
    """
    family, _, game = env.partition("/")
    if family != "atari" or game not in ATARI_SCORES:
        return None
    random, human = ATARI_SCORES[game]
    return (score - random) / (human - random)

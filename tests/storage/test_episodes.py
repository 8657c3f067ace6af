"""Ends of episodes as one integer."""

import numpy as np
import pytest

from rollmill.storage.episodes import EpisodeEnd, pack_episode, pack_match, unpack_episode, unpack_match
from rollmill.storage.matches import Match


@pytest.mark.parametrize("value", [0.0, -21.0, *(float(np.float32(x)) for x in (1e30, -1.5e-30, 0.1))])
@pytest.mark.parametrize("length", [1, 1000, 2**31 - 1])
def test_a_return_and_a_length_come_back(value, length):
    message = pack_episode(value, length)
    assert 0 <= message < 2**63
    assert unpack_episode(message) == EpisodeEnd(value, length)


def test_the_longest_length_stays_the_longest():
    assert unpack_episode(pack_episode(1.0, 2**40)) == EpisodeEnd(1.0, 2**31 - 1)


@pytest.mark.parametrize("opponent", [0, 1, 40, 2**15 - 1])
@pytest.mark.parametrize("points", [0.0, 0.5, 1.0])
def test_results_of_matches_are_told_from_episodes(opponent, points):
    message = pack_match(Match(opponent, points))
    assert 0 <= message < 2**63
    assert unpack_match(message) == Match(opponent, points)
    assert unpack_match(pack_episode(0.0, 1)) is None

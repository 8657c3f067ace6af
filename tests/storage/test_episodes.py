"""Ends of episodes as one integer."""

import numpy as np
import pytest

from rollmill.storage.episodes import EpisodeEnd, pack_episode, unpack_episode


@pytest.mark.parametrize("value", [0.0, -21.0, *(float(np.float32(x)) for x in (1e30, -1.5e-30, 0.1))])
@pytest.mark.parametrize("length", [1, 1000, 2**31 - 1])
def test_a_return_and_a_length_come_back(value, length):
    message = pack_episode(value, length)
    assert 0 <= message < 2**63
    assert unpack_episode(message) == EpisodeEnd(value, length)


def test_the_longest_length_stays_the_longest():
    assert unpack_episode(pack_episode(1.0, 2**40)) == EpisodeEnd(1.0, 2**31 - 1)

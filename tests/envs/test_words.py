"""Hashed words."""

import numpy as np

from rollmill.envs.words import WORD_BUCKETS, hashed_words


def test_hashed_words_know_the_order_of_neighbours_and_nothing_else():
    assert hashed_words("").shape == (WORD_BUCKETS,)
    assert hashed_words("").sum() == 0
    assert hashed_words("red").sum() == 1
    assert hashed_words("red ball").sum() == 3
    np.testing.assert_array_equal(hashed_words("Red, ball!"), hashed_words("red ball"))
    assert (hashed_words("ball red") != hashed_words("red ball")).any()
    located = hashed_words("red object in the blue room"), hashed_words("blue object in the red room")
    assert (located[0] != located[1]).any()
    # Buckets must not differ between processes, versions and machines: the CRC-32 of "red" is 4200685455.
    assert np.flatnonzero(hashed_words("red")).tolist() == [455]

"""Replays that several tests begin with."""

import numpy as np

from rollmill.replay import PrioritizedReplay

SCALAR = {"x": ((), "int64")}


def filled(capacity=100, count=100, **settings):
    replay = PrioritizedReplay(capacity, SCALAR, **settings)
    replay.add(x=np.arange(count))
    return replay

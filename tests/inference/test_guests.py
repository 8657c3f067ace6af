"""Scripted guests."""

from __future__ import annotations

import numpy as np

from rollmill.inference.guests import ScriptedGuest


def test_a_scripted_guest_calls_its_function() -> None:
    guest = ScriptedGuest(lambda observation, mask, count, when: (np.full((count, 1), sum(when), np.int32), None))
    chosen, _ = guest.choose({}, None, 3, (1, 2, 3))
    assert chosen is not None
    assert chosen.tolist() == [[6]] * 3

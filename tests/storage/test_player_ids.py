"""Numbers of players."""

from __future__ import annotations

from rollmill.storage.player_ids import PlayerIds


def test_every_past_self_has_a_number_of_its_own_behind_the_policies() -> None:
    players = PlayerIds(policies=3, places=4)
    past = [players.past(policy, place) for policy in range(3) for place in range(4)]
    assert past == list(range(3, 15))
    assert [players.place(player) for player in past] == [(policy, place) for policy in range(3) for place in range(4)]
    assert [players.is_past(player) for player in range(5)] == [False, False, False, True, True]


def test_guests_come_last() -> None:
    players = PlayerIds(policies=2, places=3, guests=2)
    assert [players.guest(index) for index in range(2)] == [8, 9]
    assert [players.guest_index(player) for player in (0, 7, 8, 9)] == [None, None, 0, 1]
    assert not players.is_past(8)

"""Snapshots of a policy: when they are taken, which stay, and who is met."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollmill.learning.league import League, Standings
from rollmill.learning.matchmaking import MATCHMAKING
from rollmill.learning.ratings import Elo
from rollmill.learning.snapshot_keeper import CountedPlaces, ObservedPlaces, SnapshotKeeper, least_needed
from rollmill.learning.trajectories import Trajectories
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.storage.bank import SnapshotBank, add_to_layout
from rollmill.storage.matches import Match
from rollmill.storage.player_ids import PlayerIds
from rollmill.storage.population_config import PopulationConfig

NBYTES = 64
PLAYERS = PlayerIds(1, 3)


def make_bank(places: int, num_versions: int = 4) -> SnapshotBank:
    layout = ArenaLayout()
    add_to_layout(layout, places=places, nbytes=NBYTES, num_versions=num_versions)
    return SnapshotBank(Arena.create(layout), create=True)


def batch(*matches: Match, last: Any = (0,)) -> Trajectories:
    index = np.zeros((2, 1), np.int64)
    return Trajectories({}, index, (), (), tuple(matches), np.array(last, np.int16))


def weights(value: int) -> Any:
    return np.full(NBYTES, value, np.uint8)


def make_league(bank: SnapshotBank, places: Any = None, **options: Any) -> League:
    config = PopulationConfig(snapshots=bank.places, snapshot_every=100, **options)
    standings = Standings(1, Elo())
    keeper = SnapshotKeeper(bank, places or CountedPlaces(bank), config, system=standings.system, num_versions=2)
    return League(0, ["0"], PlayerIds(1, bank.places), standings, keeper)


def test_snapshots_are_taken_at_intervals_and_the_oldest_leaves_when_nobody_plays_it() -> None:
    bank = make_bank(3)
    league, into = make_league(bank), np.zeros(NBYTES, np.uint8)
    for version in range(60):
        league.publish(30 * version, version, weights(version))
        generations = bank.newest_table().generation
        assert sum(generations > 0) <= 2, "one place waits for the next snapshot"
        for place, generation in enumerate(generations.tolist()):
            if generation:
                assert bank.read(place, into, unless=-1) == generation
                # Snapshot n is the first version with 100 n agent steps.
                assert (into == -(-100 * generation // 30)).all()
    assert league.figures(is_row=True)["snapshots"] == 17
    oldest = int(generations[generations > 0].min())
    place = int(np.flatnonzero(generations == oldest)[0])
    assert bank.begin(place, oldest)
    for version in range(60, 90):
        league.publish(30 * version, version, weights(version))
        assert bank.read(place, into, unless=-1) == oldest
    assert league.figures(is_row=True)["snapshots"] < 21
    bank.end(place)
    league.publish(30 * 90, 90, weights(90))
    assert bank.read(place, into, unless=-1) > oldest


def test_a_bank_may_reach_back_to_the_start() -> None:
    bank = make_bank(6)
    league = make_league(bank, keep="spread")
    for version in range(1, 200):
        league.publish(100 * version, version, weights(version % 250))
    kept = sorted(generation for generation in bank.newest_table().generation.tolist() if generation)
    assert kept[0] == 1
    assert kept[-1] == 199
    assert len(kept) == 5
    gaps = np.diff(kept)
    assert gaps.max() < 120
    assert gaps.min() > 10


@pytest.mark.parametrize(
    ("generations", "expected"),
    [([1, 2, 3, 4], 2), ([1, 5, 6, 7], 6), ([1, 2, 9, 10], 2), ([1, 8, 9, 20], 8), ([3, 4], 3)],
)
def test_the_snapshot_with_the_nearest_neighbours_is_needed_least(generations: list[int], expected: int) -> None:
    members = [(generation, place) for place, generation in enumerate(generations)]
    assert least_needed(members[::-1])[0] == expected


def test_in_lockstep_a_place_is_unused_when_no_batch_shows_it_and_none_in_flight_can() -> None:
    places = ObservedPlaces(PLAYERS, 0, lag=1)
    places.observe(batch(last=[0, 3]), 4)
    assert not places.is_unused(2), "a match is under way"
    places.close(2, 4)
    places.observe(batch(last=[0]), 5)
    assert not places.is_unused(2), "iteration 5 was drawn with the table of version 4 or an older one"
    places.observe(batch(last=[0]), 6)
    assert places.is_unused(2)
    restored = ObservedPlaces(PLAYERS, 0, lag=1)
    restored.load_state_dict(places.state_dict())
    assert restored.is_unused(2)


@pytest.mark.parametrize(
    ("matchmaking", "expected"),
    [("uniform", [0.5, 0.5, 0]), ("latest", [0, 1, 0]), ("pfsp", [0.05, 0.95, 0]), ("elo", [0.5, 0.5, 0])],
)
def test_who_is_met(matchmaking: Any, expected: list[float]) -> None:
    bank = make_bank(3)
    league = make_league(bank, matchmaking=matchmaking)
    for number in (1, 2):
        league.publish(100 * number, number, weights(number))
    league.observe(batch(*[Match(1, 1.0)] * 200, *[Match(2, 0.0)] * 200), 3)
    league.publish(250, 3, weights(3))
    np.testing.assert_allclose(bank.newest_table().probability, expected, atol=0.05)


def test_a_bank_of_another_size_is_refused() -> None:
    state = make_league(make_bank(3)).state_dict()
    with pytest.raises(ValueError, match=r"a bank of 3 past selves, but population\.snapshots=4"):
        make_league(make_bank(4)).load_state_dict(state)


def test_a_snapshot_may_wait_until_the_policy_wins() -> None:
    bank = make_bank(4)
    league = make_league(bank, snapshot_win_rate=0.6)
    league.publish(100, 1, weights(1))
    assert league.figures(is_row=False)["snapshots"] == 1, "the first one needs no matches"
    for version, won, expected in [(2, 1.0, 1), (3, 1.0, 2), (4, 0.0, 2), (5, 1.0, 2), (6, 1.0, 3)]:
        # 90 matches are too few; of 180, all won, are enough; of 90 lost and 90 won they are not, of 180 won they are.
        league.observe(batch(*[Match(1, won)] * 90), version)
        league.publish(100 * version, version, weights(version))
        assert league.figures(is_row=False)["snapshots"] == expected


def test_a_rule_of_the_user_decides_who_is_met(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def rule(past: Any, policy: Any) -> list[float]:
        asked.append((list(past), policy))
        return [3.0 if member.generation == 1 else 1.0 for member in past]

    monkeypatch.setitem(MATCHMAKING.factories, "mine", rule)
    bank = make_bank(3)
    league = make_league(bank, matchmaking="mine")
    for number in (1, 2):
        league.publish(100 * number, number, weights(number))
    np.testing.assert_allclose(bank.newest_table().probability, [0.75, 0.25, 0])
    past, policy = asked[-1]
    assert [member.agent_steps for member in past] == [100, 200]
    assert policy.agent_steps == 200
    assert past[0].expected == 0.5

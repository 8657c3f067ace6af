"""Snapshots, ratings and matchmaking of a policy and its past selves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollmill.learning.league import (
    CountedPlaces,
    League,
    ObservedPlaces,
    SnapshotKeeper,
    Standings,
    least_needed,
)
from rollmill.learning.matches import Match
from rollmill.learning.trajectories import Trajectories
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.storage.bank import SnapshotBank, add_to_layout
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
    keeper = SnapshotKeeper(bank, places or CountedPlaces(bank), config, num_versions=2)
    return League(0, ["0"], PlayerIds(1, bank.places), Standings(1), keeper)


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


def test_ratings_follow_results_and_snapshots_keep_theirs() -> None:
    bank = make_bank(3)
    league = make_league(bank)
    league.publish(100, 1, weights(1))
    league.observe(batch(*[Match(1, 1.0)] * 40), 2)
    won = league.rating
    assert won > 100
    league.observe(batch(*[Match(1, 0.0)] * 10, *[Match(1, 0.5)] * 2, Match(0, 1.0), Match(3, 1.0)), 3)
    assert league.rating < won
    figures = league.figures(is_row=True)
    assert figures["past_win_rate"] == pytest.approx(41 / 52), "places without a snapshot do not count"
    assert league.figures(is_row=False)["past_win_rate"] is None


@pytest.mark.parametrize(
    ("matchmaking", "expected"),
    [("uniform", [0.5, 0.5, 0]), ("latest", [0, 1, 0]), ("pfsp", [0.05, 0.95, 0])],
)
def test_who_is_met(matchmaking: Any, expected: list[float]) -> None:
    bank = make_bank(3)
    league = make_league(bank, matchmaking=matchmaking)
    for number in (1, 2):
        league.publish(100 * number, number, weights(number))
    league.observe(batch(*[Match(1, 1.0)] * 200, *[Match(2, 0.0)] * 200), 3)
    league.publish(250, 3, weights(3))
    np.testing.assert_allclose(bank.newest_table().probability, expected, atol=0.05)


def test_a_restored_league_goes_on_as_the_one_that_was_saved() -> None:
    banks = [make_bank(3), make_bank(3)]
    leagues = [make_league(bank, ObservedPlaces(PLAYERS, 0, lag=1), matchmaking="pfsp") for bank in banks]
    into = np.zeros(NBYTES, np.uint8)

    def advance(league: League, version: int) -> None:
        results = [Match(1 + version % 3, float(version % 2))] * 5
        league.observe(batch(*results, last=[0, 1 + version % 2]), version)
        league.publish(60 * version, version, weights(version))

    for version in range(1, 12):
        advance(leagues[0], version)
    leagues[1].load_state_dict(leagues[0].state_dict())
    # The version that the checkpoint holds is published again.
    leagues[1].publish(60 * 11, 11, weights(11))
    for version in (10, 11):
        assert banks[1].table(version).pack().tolist() == banks[0].table(version).pack().tolist()
    for version in range(12, 30):
        for league in leagues:
            advance(league, version)
        one, other = (bank.table(version) for bank in banks)
        assert one.pack().tolist() == other.pack().tolist()
        for place in range(3):
            reads = [(bank.read(place, into, unless=-1), into.tolist()) for bank in banks]
            assert reads[0] == reads[1]
    assert leagues[0].rating == leagues[1].rating


def test_a_bank_of_another_size_is_refused() -> None:
    state = make_league(make_bank(3)).state_dict()
    with pytest.raises(ValueError, match=r"a bank of 3 past selves, but population\.snapshots=4"):
        make_league(make_bank(4)).load_state_dict(state)

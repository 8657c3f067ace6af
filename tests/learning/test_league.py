"""Ratings and results of a policy against others and its past selves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollmill.learning.league import League, Standings
from rollmill.learning.ratings import Elo, OpenSkill, RatingSystem
from rollmill.learning.snapshot_keeper import ObservedPlaces, SnapshotKeeper
from rollmill.learning.trajectories import Trajectories
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.storage.bank import SnapshotBank, add_to_layout
from rollmill.storage.matches import Match
from rollmill.storage.player_ids import PlayerIds
from rollmill.storage.population_config import PopulationConfig

NBYTES = 64
PLAYERS = PlayerIds(1, 3)


def make_bank(places: int = 3) -> SnapshotBank:
    layout = ArenaLayout()
    add_to_layout(layout, places=places, nbytes=NBYTES, num_versions=4)
    return SnapshotBank(Arena.create(layout), create=True)


def batch(*matches: Match, last: Any = (0,)) -> Trajectories:
    return Trajectories({}, np.zeros((2, 1), np.int64), (), (), tuple(matches), np.array(last, np.int16))


def weights(value: int) -> Any:
    return np.full(NBYTES, value, np.uint8)


def make_league(bank: SnapshotBank, system: RatingSystem | None = None, **options: Any) -> League:
    config = PopulationConfig(snapshots=bank.places, snapshot_every=100, **options)
    standings = Standings(1, system or Elo())
    places = ObservedPlaces(PLAYERS, 0, lag=1)
    keeper = SnapshotKeeper(bank, places, config, system=standings.system, num_versions=2)
    return League(0, ["0"], PlayerIds(1, bank.places), standings, keeper)


def test_ratings_follow_results_and_snapshots_keep_theirs() -> None:
    bank = make_bank()
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


def test_matches_of_replaced_weights_do_not_count_but_tell_who_is_played() -> None:
    league = make_league(make_bank())
    league.publish(100, 1, weights(1))
    league.observe(batch(Match(1, 1.0), last=(0, 1)), 2, is_own=False)
    assert league.rating == make_league(make_bank()).rating
    assert league.figures(is_row=False)["past_win_rate"] is None
    assert league._keeper is not None
    assert not league._keeper._places.is_unused(0)


@pytest.mark.parametrize(("system", "matchmaking"), [(Elo, "pfsp"), (OpenSkill, "elo")])
def test_a_restored_league_goes_on_as_the_one_that_was_saved(system: Any, matchmaking: str) -> None:
    banks = [make_bank(), make_bank()]
    leagues = [make_league(bank, system(), matchmaking=matchmaking) for bank in banks]
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


def test_a_state_that_was_restored_before_is_forgotten() -> None:
    bank, again = make_bank(), make_bank()
    league, restored = make_league(bank), make_league(again)
    states = []
    for version in range(1, 4):
        league.publish(100 * version, version, weights(version))
        states.append(league.state_dict())
    # The newest checkpoint is tried first, and may be refused.
    restored.load_state_dict(states[-1])
    restored.load_state_dict(states[0])
    for version in range(1, 3):
        restored.publish(100 * version, version, weights(version))
    assert str(restored.state_dict()) == str(states[1])
    assert again.table(2).pack().tolist() == bank.table(2).pack().tolist()


def test_guests_keep_their_results_in_any_place_and_new_ones_have_none() -> None:
    players = PlayerIds(1, 0, 3)

    def make(*guests: str) -> League:
        names = [guest.partition("=")[0] for guest in guests]
        return League(0, ["0", *names], players, Standings(1, Elo()), guests=guests)

    saved = make("random", "expert=runs/a", "other=runs/c")
    points = {0: 1.0, 1: 0.5, 2: 0.0}
    saved.observe(batch(*[Match(players.guest(index), won) for index, won in points.items()] * 3), 1)
    resumed = make("expert=runs/b", "other=runs/c", "random")
    resumed.load_state_dict(saved.state_dict())
    figures = resumed.figures(is_row=True)
    assert [figures[f"win_rate/{name}"] for name in ("expert", "other", "random")] == [None, 0.0, 1.0]


def test_ratings_of_another_system_start_again() -> None:
    league = make_league(make_bank())
    league.publish(100, 1, weights(1))
    league.observe(batch(*[Match(1, 1.0)] * 40), 2)
    other = make_league(make_bank(), OpenSkill())
    other.load_state_dict(league.state_dict())
    assert other.rating == make_league(make_bank(), OpenSkill()).rating
    assert other.figures(is_row=False)["snapshots"] == 1


def test_the_state_of_an_older_checkpoint_is_read() -> None:
    league = make_league(make_bank())
    league.publish(100, 1, weights(1))
    league.observe(batch(*[Match(1, 1.0)] * 40), 2)
    state = league.state_dict()
    (value, _), old = state["rating"], {k: v for k, v in state.items() if k not in ("rating_system", "since")}
    members = [member and {**member, "rating": member["rating"][0]} for member in state["members"]]
    other = make_league(make_bank())
    other.load_state_dict({**old, "rating": value, "members": members})
    assert other.rating == league.rating


def make_leagues(**options: Any) -> tuple[list[League], list[SnapshotBank]]:
    """Build the leagues of two policies, a bank each."""
    standings, players = Standings(2, Elo()), PlayerIds(2, 3)
    layout = ArenaLayout()
    for policy in range(2):
        add_to_layout(layout, places=3, nbytes=NBYTES, num_versions=4, policy=policy)
    arena = Arena.create(layout)
    banks = [SnapshotBank(arena, policy=policy, create=True) for policy in range(2)]
    config = PopulationConfig(snapshots=3, snapshot_every=100, **options)
    leagues = []
    for policy, bank in enumerate(banks):
        places = ObservedPlaces(players, policy, lag=1)
        keeper = SnapshotKeeper(bank, places, config, system=standings.system, num_versions=2)
        leagues.append(League(policy, ["hunter", "prey"], players, standings, keeper))
    return leagues, banks


def past_of_prey(place: int) -> int:
    return next(player for player in range(20) if PlayerIds(2, 3).place(player) == (1, place))


def test_a_win_rate_counts_past_selves_of_other_policies() -> None:
    (hunter, prey), _ = make_leagues(snapshot_win_rate=0.6)
    for league in (hunter, prey):
        league.publish(100, 1, weights(1))
    for points, snapshots in ((0.5, 1), (1.0, 2)):
        hunter.observe(batch(*[Match(past_of_prey(0), points)] * 150), 2)
        hunter.publish(200, 2, weights(2))
        assert hunter.figures(is_row=True)["snapshots"] == snapshots
    assert prey.figures(is_row=True)["snapshots"] == 1


def test_results_of_weights_that_were_replaced_choose_nobody() -> None:
    bank = make_bank()
    league, other = make_league(bank, matchmaking="pfsp", snapshot_win_rate=0.6), make_league(make_bank())
    for version in (1, 2):
        league.publish(100 * version, version, weights(version))
        league.observe(batch(*[Match(1, 1.0)] * 150), version + 1)
    assert bank.table(2).probability[0] < 0.1 < bank.table(2).probability[1]
    league.take_over(other)
    league.publish(300, 3, weights(3))
    assert league.figures(is_row=True)["snapshots"] == 2
    assert bank.table(3).probability[:2].tolist() == [0.5, 0.5]


def test_who_is_met_depends_on_the_results_of_other_policies() -> None:
    (hunter, prey), (_, bank) = make_leagues(matchmaking="pfsp")
    for version in (1, 2):
        prey.publish(100 * version, version, weights(version))
    assert bank.table(2).probability[:2].tolist() == [0.5, 0.5]
    hunter.observe(batch(*[Match(past_of_prey(0), 1.0)] * 40, *[Match(past_of_prey(1), 0.0)] * 40), 3)
    prey.publish(210, 3, weights(3))
    easy, hard = bank.table(3).probability[:2].tolist()
    assert hard > 0.95 > 0.05 > easy

    restored, banks = make_leagues(matchmaking="pfsp")
    # More results than the checkpoint of the owner knew of when it published this table.
    hunter.observe(batch(*[Match(past_of_prey(0), 0.0)] * 20), 4)
    for before, after, version in ((hunter, restored[0], 1), (prey, restored[1], 3)):
        after.load_state_dict(before.state_dict())
        after.publish(210, version, weights(3))
    assert banks[1].table(3).pack().tolist() == bank.table(3).pack().tolist()
    for league in (prey, restored[1]):
        league.publish(220, 4, weights(4))
    assert banks[1].table(4).pack().tolist() == bank.table(4).pack().tolist()
    assert bank.table(4).probability[0] > easy


def test_results_against_a_past_self_that_was_replaced_do_not_count() -> None:
    (hunter, prey), (_, bank) = make_leagues(matchmaking="pfsp", keep="recent")
    prey.publish(100, 1, weights(1))
    hunter.observe(batch(*[Match(past_of_prey(0), 1.0)] * 40), 2)
    for version in range(2, 9):
        prey.observe(batch(last=(0, 1)), version)
        prey.publish(100 * version, version, weights(version))
    table = bank.table(8)
    assert table.generation.min() == 0
    assert table.probability[table.generation > 0].tolist() == [0.5, 0.5]

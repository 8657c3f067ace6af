"""Who plays whom, and when it changes."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rollmill.rollout.assignment import Assignment
from rollmill.rollout.matchmaker import SLOTS_OF_A_DRAW, Guests, Matchmaker, PastOpponents
from rollmill.rollout.slot_views import HostedGroup
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec
from rollmill.storage import bank as banks
from rollmill.storage import slots
from rollmill.storage.player_ids import PlayerIds

STEPS, ENVS, AGENTS, PLACES = 4, 3, 2, 3
PLAYERS = PlayerIds(1, PLACES)
SPEC = EnvSpec(
    name="test",
    observation={"obs": ArraySpec(shape=(1,), dtype="float32")},
    action=ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete"),
    agents=("ann", "bob"),
)


class Episodes:
    """Environments of which a test says when their episodes begin."""

    def __init__(self) -> None:
        self.episodes = np.ones(ENVS, np.int64)
        self.resets_next = np.zeros(ENVS, bool)


class Hall:
    """The slots of two groups, a bank, and groups whose episodes a test sets."""

    def __init__(self) -> None:
        self.topology = slots.Topology(
            rollout_length=STEPS,
            group_rows=ENVS * AGENTS,
            worker_of_group=(0, 0),
            policy_worker_of_group=(0, 0),
            slots_of_worker=(4,),
            agents_per_env=AGENTS,
            players=PLAYERS,
        )
        fields = slots.slot_fields(SPEC, rollout_length=STEPS, state_size=0, has_players=True)
        layout = ArenaLayout()
        slots.add_to_layout(layout, fields, self.topology)
        banks.add_to_layout(layout, places=PLACES, nbytes=8, num_versions=2)
        arena = Arena.create(layout)
        self.store = slots.SlotStore(arena, fields, self.topology, create=True)
        self.bank = banks.SnapshotBank(arena, create=True)
        self.groups = [HostedGroup(index=index, slot=index, environments=Episodes()) for index in range(2)]

    def matchmaker(self, first_env: int = 0, **options: Any) -> Matchmaker:
        settings = {"share": 0.5, "seed": 3, "counts_users": True, **options}
        return Matchmaker(
            self.store,
            assignment=Assignment([(0,), (0,)], is_random=True, num_envs=6, seed=3),
            past_selves=PastOpponents([self.bank], PLAYERS, table_of=lambda bank, _: bank.newest_table(), **settings),
            first_env=first_env,
        )

    def publish(self, *generations: int, version: int = 0) -> None:
        present = np.array([generation > 0 for generation in generations], np.float64)
        probability = present / max(1.0, present.sum())
        self.bank.publish(version, banks.BankTable(np.array(generations, np.int64), probability))

    def playing(self, group: int, step: int) -> Any:
        slot = self.groups[group].slot
        return self.store.arrays["policy_id"][slot, step].reshape(ENVS, AGENTS)

    def users(self) -> int:
        return int(self.bank._users.sum())


@pytest.fixture
def hall() -> Hall:
    return Hall()


def play(hall: Hall, maker: Matchmaker, steps: int, random: np.random.Generator) -> list[Any]:
    """Step both groups; returns (group, env, who plays) of every match that began."""
    begun = []
    for group in hall.groups:
        maker.write(group, 0)
    for _ in range(steps):
        for group in hall.groups:
            before = hall.playing(group.index, group.step).copy()
            begins = random.random(ENVS) < 0.3
            group.environments.episodes += begins
            group.step += 1
            maker.write(group, group.step)
            now = hall.playing(group.index, group.step)
            np.testing.assert_array_equal(now[~begins], before[~begins])
            begun += [(group.index, env, tuple(now[env].tolist())) for env in np.flatnonzero(begins).tolist()]
            if group.step == STEPS:
                hall.store.carry_over(group.slot, group.slot)
                group.step, group.iteration = 0, group.iteration + 1
    return begun


def test_without_a_snapshot_the_policy_plays_all(hall: Hall) -> None:
    begun = play(hall, hall.matchmaker(), 20, np.random.default_rng(0))
    assert {players for *_, players in begun} == {(0, 0)}


def test_one_seat_is_a_past_selfs_in_the_given_share_of_matches(hall: Hall) -> None:
    hall.publish(4, 0, 5)
    begun = play(hall, hall.matchmaker(), 2000, np.random.default_rng(0))
    past = [players for *_, players in begun if any(players)]
    assert len(past) / len(begun) == pytest.approx(0.5, abs=0.05)
    assert set(past) == {(0, 1), (1, 0), (0, 3), (3, 0)}
    for seat in range(AGENTS):
        assert sum(players[seat] > 0 for players in past) / len(past) == pytest.approx(0.5, abs=0.05)
    assert sum(1 in players for players in past) / len(past) == pytest.approx(0.5, abs=0.05)


def test_a_group_meets_one_past_self_for_some_slots(hall: Hall) -> None:
    hall.publish(1, 2, 3)
    maker, met = hall.matchmaker(share=1.0), {}
    for group in hall.groups:
        maker.write(group, 0)
    for _ in range(20 * SLOTS_OF_A_DRAW * STEPS):
        for group in hall.groups:
            group.environments.episodes += 1
            group.step += 1
            maker.write(group, group.step)
            if group.step == STEPS:
                hall.store.carry_over(group.slot, group.slot)
                group.step, group.iteration = 0, group.iteration + 1
            else:
                playing = set(hall.playing(group.index, group.step).ravel().tolist()) - {0}
                met.setdefault((group.index, group.iteration // SLOTS_OF_A_DRAW), set()).update(playing)
    assert {len(players) for players in met.values()} == {1}
    counts = np.bincount([min(players) for players in met.values()], minlength=4)[1:]
    assert counts.min() >= 5, "all are met"
    assert met[0, 0] != met[1, 0] or met[0, 1] != met[1, 1], "each group has its own"


def test_draws_depend_on_environment_and_step_alone(hall: Hall) -> None:
    hall.publish(1, 2, 3)
    one = play(hall, hall.matchmaker(), 50, np.random.default_rng(1))
    other = Hall()
    other.publish(1, 2, 3)
    assert play(other, other.matchmaker(), 50, np.random.default_rng(1)) == one
    shifted = Hall()
    shifted.publish(1, 2, 3)
    assert play(shifted, shifted.matchmaker(first_env=6), 50, np.random.default_rng(1)) != one


def test_matches_with_past_selves_are_counted_until_they_end(hall: Hall) -> None:
    hall.publish(1, 2, 3)
    maker = hall.matchmaker(share=1.0)
    for group in hall.groups:
        maker.write(group, 0)
    assert hall.users() == 2 * ENVS
    hall.publish(0, 0, 0, version=1)
    hall.groups[0].environments.episodes += 1
    maker.write(hall.groups[0], 1)
    assert hall.users() == ENVS
    maker.forget(hall.groups[1])
    assert hall.users() == 0


def test_a_resumed_match_keeps_its_players(hall: Hall) -> None:
    hall.publish(1, 2, 3)
    hall.store.arrays["policy_id"][1, 0] = [0, 2, 0, 0, 3, 0]
    maker = hall.matchmaker(share=1.0, counts_users=False)
    maker.resume(hall.groups[1], None)
    hall.groups[1].environments.episodes[1] += 1
    maker.write(hall.groups[1], 1)
    players = hall.playing(1, 1)
    assert players[0].tolist() == [0, 2]
    assert players[1].any()
    assert players[2].tolist() == [3, 0]


def test_an_agent_that_ends_first_is_compared_when_the_game_is_over(hall: Hall) -> None:
    maker, group, returns = hall.matchmaker(), hall.groups[0], hall.store.arrays["match_return"]
    nothing = np.full(ENVS * AGENTS, np.nan, np.float32)
    lost, won = nothing.copy(), nothing.copy()
    lost[3], won[2] = -1, 1
    maker.write(group, 0)
    for step in range(1, STEPS + 1):
        maker.write(group, step, lost if step == 2 else nothing)
    assert np.isnan(returns[0, :2]).all()
    np.testing.assert_array_equal(returns[0, 2:], [lost] * 3)
    # A resumed run finds it in x_0 of its first slot.
    other = Hall()
    for name in other.store.carried:
        other.store.arrays[name][0, 0] = hall.store.arrays[name][0, STEPS]
    hall.store.carry_over(0, 0)
    resumed = other.matchmaker()
    resumed.resume(other.groups[0], maker.episodes(hall.groups[0]))
    for players, of_hall in ((maker, hall), (resumed, other)):
        environments, returns = of_hall.groups[0].environments, of_hall.store.arrays["match_return"]
        environments.resets_next[1] = True
        players.write(of_hall.groups[0], 1, won)
        np.testing.assert_array_equal(returns[0, 1], np.where(np.isnan(lost), won, lost))
        environments.resets_next[1] = False
        environments.episodes[1] += 1
        players.write(of_hall.groups[0], 2, nothing)
        assert np.isnan(returns[0, 2]).all()


def test_a_past_self_does_not_replace_the_only_policy_that_learns(hall: Hall) -> None:
    hall.publish(*range(1, PLACES + 1))
    maker = hall.matchmaker(share=1.0)
    guest = PLAYERS.past(0, PLACES - 1) + 1
    ids = np.array([[0, guest], [guest, 0], [0, 0]], np.int16)
    assert maker._past_selves is not None
    maker._past_selves.replace(ids, np.arange(3), np.ones(3, np.int64), group=0, iteration=0, step=0)
    assert ids[:2].tolist() == [[0, guest], [guest, 0]]
    assert (ids[2] == 0).sum() == 1


def test_a_past_self_plays_in_the_given_share_of_matches_beside_a_guest_with_agents_of_its_own(hall: Hall) -> None:
    hall.publish(*range(1, PLACES + 1))
    maker = hall.matchmaker(share=0.4)
    assert maker._past_selves is not None
    guest, count, met = PLAYERS.guest(0), 300, np.zeros(4, int)
    for episode in range(40):
        ids = np.tile(np.array([0, guest, 0, 0], np.int16), (count, 1))
        envs, episodes = np.arange(count), np.full(count, episode)
        maker._past_selves.replace(ids, envs, episodes, group=0, iteration=0, step=episode)
        met += ((ids != 0) & (ids != guest)).sum(axis=0)
    assert met[1] == 0
    assert met.sum() / (40 * count) == pytest.approx(0.4, abs=0.02)
    assert met[[0, 2, 3]].min() > 0.9 * met.sum() / 3


def test_guests_play_in_the_given_share_of_the_matches_without_past_selves() -> None:
    guests, count = Guests([PLAYERS.guest(1)], PLAYERS, share=0.5, seed=1), 4000
    past, own = PLAYERS.past(0, 0), PLAYERS.guest(0)
    ids = np.tile(np.array([0, own, 0], np.int16), (count, 1))
    ids[::4, 0] = past
    guests.replace(ids, np.arange(count), np.ones(count, np.int64), 3)
    has_guest = (ids == PLAYERS.guest(1)).any(axis=1)
    has_past = (ids == past).any(axis=1)
    assert has_past.sum() == count / 4
    assert not (has_guest & has_past).any()
    assert has_guest[~has_past].mean() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("resets_first", [True, False], ids=["from a reset", "after random steps"])
def test_episodes_of_one_agent_are_counted_from_1(hall: Hall, resets_first: bool) -> None:
    told: list[int] = []

    def rule(agent: int, env: int, episode: int) -> int:
        told.append(episode)
        return 0

    assignment = Assignment([(0,)], is_random=False, num_envs=6, seed=0, rule=rule)
    topology = replace(hall.topology, agents_per_env=1, group_rows=ENVS * AGENTS)
    store = copy.copy(hall.store)
    store.topology = topology
    group = HostedGroup(index=0, slot=0, environments=object())
    maker = Matchmaker(store, assignment=assignment, past_selves=None, first_env=0)
    hall.store.arrays["reset"][0] = False
    hall.store.arrays["reset"][0, 0] = resets_first
    hall.store.arrays["reset"][0, 2, 1] = True
    for step in range(3):
        maker.write(group, step)
    assert told == [1] * (ENVS * AGENTS) + [2]

"""Matches over the network in the real engine: repeatable, fair, and ended when an engine dies."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vizdoom")

import vizdoom
from tests.envs.doom_kills import Kill, in_a_process, kill_engine

import rollmill
from rollmill.envs import doom_match
from rollmill.envs.doom_match import DoomMatch
from rollmill.envs.doom_processes import children
from rollmill.envs.doom_scenarios import scenario
from rollmill.envs.doom_start import protect_start

TICS = 80


def made(players: int = 2, tics: int = TICS, **arguments: Any) -> DoomMatch:
    chosen = scenario("deathmatch", packaged=str(vizdoom.scenarios_path), players=players)
    return DoomMatch(replace(chosen, tics=tics), players=players, **arguments)


@pytest.fixture
def matches() -> Iterator[list[DoomMatch]]:
    found: list[DoomMatch] = []
    yield found
    for match in found:
        match.close()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def play(match: DoomMatch, seed: int) -> tuple[list[Any], dict[str, Any]]:
    """Play an episode; returns what is seen and the last infos."""
    space = match.action_space("player_0")
    space.seed(seed)
    seen, infos = [], {}
    while match.agents:
        observations, rewards, terminated, truncated, infos = match.step(
            {agent: space.sample() for agent in match.possible_agents}
        )
        assert set(observations) == set(rewards) == set(match.possible_agents)
        assert not any(terminated.values())
        assert set(truncated.values()) == {not match.agents}
        seen.append([observations[agent]["obs"].copy() for agent in match.possible_agents])
    return seen, infos


def test_matches_end_for_all_and_hosts_are_drawn(matches: list[DoomMatch]) -> None:
    matches.append(match := made(3))
    seats = set()
    for episode in range(4):
        observations, _ = match.reset(seed=7 if not episode else None)
        assert set(observations) == {"player_0", "player_1", "player_2"}
        seats.add(tuple(match._seat.tolist()))
        seen, infos = play(match, episode)
        assert len(seen) >= TICS // 2 - 1
        assert sum(info["true_objective"] for info in infos.values()) in (0.0, 1.0)
        assert all(set(info["metrics"]) == {"frags", "deaths", "kills"} for info in infos.values())
        assert match.render().shape == (120, 3 * 160, 3)
    assert len(seats) > 1
    pids = set(match._pids)
    assert len(pids) == 3
    match.close()
    assert not any(map(is_alive, pids))


def test_metrics_come_with_the_step_after_which_the_caller_ends_a_match(matches: list[DoomMatch]) -> None:
    matches.append(match := made(2, last_step=3))
    for _ in range(2):
        match.reset(seed=1)
        space = match.action_space("player_0")
        for ends in (False, False, True, False):
            infos = match.step({agent: space.sample() for agent in match.possible_agents})[4]
            assert {"metrics" in info for info in infos.values()} == {ends}


def test_a_match_repeats_from_its_seed(matches: list[DoomMatch]) -> None:
    found = []
    for _ in range(2):
        matches.append(match := made(2))
        match.reset(seed=5)
        found.append(play(match, 3)[0])
        match.close()
    assert len(found[0]) == len(found[1])
    for one, other in zip(*found, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_engine_ends_the_match_and_nothing_else(
    victim: int, matches: list[DoomMatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doom_match, "_STEP_WITHIN_S", 2.0)
    matches.append(match := made(2, tics=10_000))
    match.reset(seed=1)
    play_a_while(match)
    pids = sorted(match._pids)
    os.kill(pids[victim], signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="an engine of a Doom match of 2 players has ended or hung"):
        play_a_while(match, 100)
    assert time.monotonic() - began < 20
    deadline = time.monotonic() + 5
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_alive, pids))


def test_a_stopped_engine_is_noticed(matches: list[DoomMatch], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doom_match, "_STEP_WITHIN_S", 1.0)
    matches.append(match := made(2, tics=10_000))
    match.reset(seed=1)
    os.kill(min(match._pids), signal.SIGSTOP)
    with pytest.raises(RuntimeError, match="has ended or hung"):
        play_a_while(match, 100)


def test_a_call_that_never_returns_is_given_up(matches: list[DoomMatch], monkeypatch: pytest.MonkeyPatch) -> None:
    # As that of an engine which was killed while it held the lock of its messages.
    monkeypatch.setattr(doom_match, "_END_WITHIN_S", 0.5)
    matches.append(match := made(2, tics=10_000))
    match.reset(seed=1)
    play_a_while(match)
    is_over = threading.Event()

    def advance(tics: int) -> None:
        os.kill(min(match._pids), signal.SIGKILL)
        is_over.wait()

    monkeypatch.setattr(match, "_advance", advance)
    with pytest.raises(RuntimeError, match=r"has ended or hung \(TimeoutError"):
        play_a_while(match, 100)
    is_over.set()


def test_a_start_that_never_returns_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doom_match, "_END_WITHIN_S", 0.5)
    match, is_over = made(2, tics=10_000), threading.Event()
    make_engine = match._engine

    class Hanging:
        def set_seed(self, seed: int) -> None:
            pass

        def init(self) -> None:
            os.kill(min(match._pids), signal.SIGKILL)
            is_over.wait()

    monkeypatch.setattr(doom_match, "protect_start", lambda game: isinstance(game, Hanging) or protect_start(game))
    monkeypatch.setattr(match, "_engine", lambda said: make_engine(said) if "-host" in said[0] else Hanging())
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="has ended or hung"):
        match.reset(seed=1)
    match.close()
    assert time.monotonic() - began < 10
    assert any(isinstance(game, Hanging) for game in doom_match._unfinished)
    doom_match._unfinished.clear()
    is_over.set()


def test_an_engine_that_does_not_start_ends_the_match_at_once() -> None:
    in_a_process(build_with_a_program_that_ends)


def build_with_a_program_that_ends() -> None:
    for number in range(2):
        match = made(2)
        make_engine = match._engine

        def engine(arguments: Sequence[str], made: Any = make_engine, number: int = number) -> Any:
            game = made(arguments)
            if ("-host" in arguments[0]) == (number == 0):
                game.set_vizdoom_path("/bin/false")
            return game

        match._engine = engine  # type: ignore[method-assign]  # a real engine of another program
        began = time.monotonic()
        with pytest.raises(RuntimeError, match="an engine of a Doom match of 2 players has ended or hung"):
            match.reset(seed=1)
        # Not after the time that engines wait for each other.
        assert time.monotonic() - began < 10
        match.close()
        assert not children()


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_an_engine_killed_while_a_match_is_built_ends_this_match(victim: int) -> None:
    in_a_process(kill_engines_of_builds, victim)


def kill_engines_of_builds(victim: int) -> None:
    for after in (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8):
        match = made(2, tics=10_000)
        with (
            kill_engine(victim, after) as kill,
            pytest.raises(RuntimeError, match="an engine of a Doom match of 2 players has ended or hung"),
        ):
            play_until_killed(match, kill)
        assert kill.at is not None
        assert time.monotonic() - kill.at < 20
        match.close()
        kill.assert_nothing_is_left()
    # The next one is built.
    match = made(2)
    match.reset(seed=1)
    play(match, 1)
    match.close()


def play_until_killed(match: DoomMatch, kill: Kill) -> None:
    match.reset(seed=1)
    while kill.at is None:  # The build was faster.
        play_a_while(match, 1)
    play_a_while(match, 100)


def play_a_while(match: DoomMatch, steps: int = 10) -> None:
    space = match.action_space("player_0")
    for _ in range(steps):
        match.step({agent: space.sample() for agent in match.possible_agents})


@pytest.mark.slow
def test_a_match_trains_and_outlives_a_killed_engine(tmp_path: Path) -> None:
    small = {"num_envs": 2, "envs_per_group": 1, "rollout_length": 16, "learner.batch_size": 64}
    small |= {"learner.minibatches": 2, "rollout.num_workers": 1}

    class Killing(rollmill.Callback):
        killed: int | None = None

        def on_report(self, run: rollmill.LiveRun, metrics: Any) -> None:
            if self.killed is None and metrics["agent_steps"] >= 128:
                self.killed = _own_engines()[0]
                os.kill(self.killed, signal.SIGKILL)

    callback = Killing()
    run = rollmill.train(
        "vizdoom/duel", run_dir=tmp_path / "run", total_steps=1200, quiet=True, callbacks=[callback], **small
    )
    assert callback.killed is not None
    assert run.agent_steps >= 1200
    assert "has ended or hung" in (tmp_path / "run" / "run.log").read_text()


@pytest.mark.slow
def test_training_outlives_engines_killed_while_matches_are_built(tmp_path: Path) -> None:
    small = {"num_envs": 2, "envs_per_group": 1, "rollout_length": 16, "learner.batch_size": 64}
    small |= {"learner.minibatches": 2, "rollout.num_workers": 1}
    # Of each process that builds matches: the probe and the rollout worker.
    kills, seen, is_over = Counter[int](), set[int](), threading.Event()

    def kill() -> None:
        while not is_over.wait(0.01):
            for pid in sorted(set(_own_engines()) - seen):
                with contextlib.suppress(OSError):
                    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
                    if kills[parent] < 2 and not is_over.wait(0.1 * kills[parent]):
                        os.kill(pid, signal.SIGKILL)
                        kills[parent] += 1
                seen.add(pid)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        run = rollmill.train("vizdoom/duel", run_dir=tmp_path / "run", total_steps=600, quiet=True, **small)
    finally:
        is_over.set()
        thread.join()
    assert list(kills.values()) == [2, 2]
    assert run.agent_steps >= 600
    assert (tmp_path / "run" / "run.log").read_text().count("environment 0 of vizdoom/duel failed in its reset") == 2
    assert not set(_own_engines()) & seen


def _own_engines() -> list[int]:
    """Process ids of the engines that descend from this process, not those of other programs."""
    parents, engines = {}, []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
            parents[int(path.parent.name)] = int(rest.split()[1])
            if name == "vizdoom":
                engines.append(int(path.parent.name))

    def is_own(pid: int) -> bool:
        while pid in parents:
            pid = parents[pid]
            if pid == os.getpid():
                return True
        return False

    return sorted(filter(is_own, engines))

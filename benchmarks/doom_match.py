"""Doom matches over the network: one thread that advances the host first, and a thread for each player.

    python benchmarks/doom_match.py --players 2 4 --seconds 20 --json
    python benchmarks/doom_match.py --matches 1000 --kills 50

Both ways advance engines with the same maps and rules, tic by tic, in turns; a step is four tics. As in training, every
core has a match (``--processes``); threads that wait for each other would otherwise use cores that are idle here. With
``--pin`` the threads and engines of a match stay on its core, as Sample Factory's workers do by default
(``set_workers_cpu_affinity``). A thread for each player with a barrier after each tic is how Sample Factory 2.1.1 steps
its matches (sf_examples/vizdoom/doom/multiplayer).

With ``--matches`` a group plays so many short matches of four while engines are killed at random moments; matches are
built again, and nothing may hang or stay behind.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import vizdoom

from rollmill.envs.config import EnvConfig, VizdoomOptions
from rollmill.envs.doom_match import DoomMatch
from rollmill.envs.doom_scenarios import scenario
from rollmill.envs.factory import make_group, probe
from rollmill.envs.random_actions import random_actions
from rollmill.envs.views import own_views

SKIP = 4
_ROUNDS = 3


class Threads:
    """A thread for each player, which advance by a tic at the same time.

    Args:
        games: The engines.
    """

    def __init__(self, games: list[Any]) -> None:
        self._games = games
        self._barrier = threading.Barrier(len(games) + 1)
        self._looks, self._is_over = False, False
        self._threads = [threading.Thread(target=self._play, args=(game,), daemon=True) for game in games]
        for thread in self._threads:
            thread.start()

    def tic(self, *, looks: bool) -> None:
        """Advance all engines by a tic."""
        self._looks = looks
        self._barrier.wait()
        self._barrier.wait()

    def close(self) -> None:
        """End the threads."""
        self._is_over = True
        self._barrier.wait()
        for thread in self._threads:
            thread.join()

    def _play(self, game: Any) -> None:
        while True:
            self._barrier.wait()
            if self._is_over:
                return
            game.advance_action(1, self._looks)
            self._barrier.wait()


def speed(games: list[Any], seconds: float, tic: Callable[..., None], choose: Callable[[], list[float]]) -> float:
    """Return player-steps a second."""
    until, steps, began = time.monotonic() + seconds, 0, time.monotonic()
    while time.monotonic() < until:
        for game in games:
            game.set_action(choose())
        for number in range(SKIP):
            tic(looks=number == SKIP - 1)
        for game in games:
            assert game.get_state() is not None
        steps += len(games)
    return steps / (time.monotonic() - began)


def speed_of_match(players: int, seconds: float, *, with_threads: bool) -> float:
    """Build a match and return its player-steps a second."""
    chosen = scenario("deathmatch", packaged=str(vizdoom.scenarios_path), players=players)
    with contextlib.closing(DoomMatch(chosen, players=players)) as match:
        match.reset(seed=1)
        space = match.action_space("player_0")
        for _ in range(20):  # The first tics are taken with care.
            match.step({agent: space.sample() for agent in match.possible_agents})
        games, random, buttons = match._games, np.random.default_rng(0), len(chosen.buttons)

        def choose() -> list[float]:
            return [*random.integers(0, 2, buttons - 1).astype(float).tolist(), float(random.uniform(-12, 12))]

        def host_first(*, looks: bool) -> None:
            for game in games:
                game.advance_action(1, looks)

        threads = Threads(games) if with_threads else None
        found = speed(games, seconds, host_first if threads is None else threads.tic, choose)
        if threads is not None:
            threads.close()
        return found


def compare(players: int, seconds: float, processes: int, *, pins: bool) -> dict[str, Any]:
    """Measure both ways in turns, each with a match in so many processes at a time."""
    cores = sorted(os.sched_getaffinity(0))
    found: dict[str, list[float]] = {"host first": [], "threads": []}
    for turn in range(_ROUNDS):
        for way in ("host first", "threads") if turn % 2 == 0 else ("threads", "host first"):
            command = [sys.executable, __file__, "--one", way, "--players", str(players)]
            command += ["--seconds", str(seconds / (2 * _ROUNDS))]
            started = [
                subprocess.Popen(
                    [*command, "--core", str(cores[place % len(cores)])] if pins else command,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
                for place in range(processes)
            ]
            try:
                found[way].append(sum(float(each.communicate()[0].split()[-1]) for each in started))
            finally:
                for each in started:
                    each.terminate()
                for each in started:
                    each.wait()
    medians = {name: statistics.median(values) for name, values in found.items()}
    ratio = medians["host first"] / medians["threads"]
    return {"players": players, "processes": processes, "pinned": pins, **medians, "ratio": ratio}


def play_with_faults(matches: int, kills: int) -> dict[str, Any]:
    """Play matches while engines are killed; returns what has happened."""
    config = EnvConfig(
        name="vizdoom/deathmatch",
        vizdoom=VizdoomOptions(measurements=True),
        on_failure="restart",
        restart_budget=kills + 10,
        max_episode_steps=30,
    )
    spec = probe(config)
    killed, ended, longest, began = 0, 0, 0.0, time.monotonic()
    with contextlib.closing(make_group(config, 1, [1], agents=spec.agents)) as group:
        into, outcome = own_views(spec, group.num_rows)
        random = np.random.default_rng(0)
        group.reset(into)
        fatal = set(random.choice(matches, kills, replace=False).tolist())
        while ended < matches:
            if ended in fatal:
                fatal.remove(ended)
                os.kill(int(random.choice(engines())), signal.SIGKILL)
                killed += 1
            before = time.monotonic()
            group.step(*random_actions(spec.action, into.action_mask, group.num_rows, random), into, outcome)
            longest = max(longest, time.monotonic() - before)
            ended += int((outcome.episode_length > 0).any())
        rebuilt = len(group.failures)
    time.sleep(1.0)
    minutes = (time.monotonic() - began) / 60
    return {
        "matches": ended,
        "killed": killed,
        "rebuilt": rebuilt,
        "longest_step_s": longest,
        "minutes": minutes,
        "engines_left": len(engines()),
    }


def engines() -> list[int]:
    """Return the engines that this process has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
            if name == "vizdoom" and int(rest.split()[1]) == os.getpid() and rest.split()[0] != "Z":
                found.append(int(path.parent.name))
    return found


def main() -> int:
    """Compare for each number of players, or play with faults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--players", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--seconds", type=float, default=20.0, help="for each number of players")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--processes", type=int, help="matches at a time (default: one for each core)")
    parser.add_argument("--pin", action="store_true", help="keep each match on a core")
    parser.add_argument("--core", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--one", choices=("host first", "threads"), help=argparse.SUPPRESS)
    parser.add_argument("--matches", type=int, help="play so many matches with faults instead")
    parser.add_argument("--kills", type=int, default=50, help="engines that are killed in them")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # As Ctrl-C, so that engines end with their match.
    if arguments.matches is not None:
        print(json.dumps(play_with_faults(arguments.matches, arguments.kills)))
        return 0
    if arguments.one is not None:
        if arguments.core is not None:
            os.sched_setaffinity(0, {arguments.core})
        threaded = arguments.one == "threads"
        print(speed_of_match(arguments.players[0], arguments.seconds, with_threads=threaded))
        return 0
    cores = arguments.processes or len(os.sched_getaffinity(0))
    results = [compare(players, arguments.seconds, cores, pins=arguments.pin) for players in arguments.players]
    for result in () if arguments.json else results:
        print(result)
    print(json.dumps({str(result["players"]): result for result in results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

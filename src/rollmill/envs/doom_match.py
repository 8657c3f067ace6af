"""Matches of 2 to 8 players over Doom's own network protocol, all advanced by one call after another.

Every player is an engine, a process. The engines are advanced tic by tic, the one that hosts first: it returns at once,
while one that goes first would wait for the others with a whole core. So the worlds are those of players with a thread
each, and the match is repeatable from its start, at a fraction of the time.

An engine that was killed lets its own call fail and all others wait for ever. A watch therefore ends all engines of a
match that has lost one, or whose call takes too long; the group then rebuilds the match (``env.on_failure="restart"``).
A call never returns if its engine was killed while it held the lock of its messages. All calls that wait for an engine
are therefore made in threads of their own, and given up some seconds after the engines were ended.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import Any

import numpy as np
from gymnasium import spaces

from rollmill.envs.doom_calls import EngineCalls, all_returned
from rollmill.envs.doom_ports import Port
from rollmill.envs.doom_processes import children, is_alive, quiet
from rollmill.envs.doom_scenarios import TICS_PER_SECOND, Scenario, missing_engine
from rollmill.envs.doom_sound import check_sound, enable_sound, heard, sound_space
from rollmill.envs.doom_start import protect_start
from rollmill.envs.doom_status import MEASUREMENTS, Status
from rollmill.envs.views import Array
from rollmill.envs.vizdoom_env import add_scenario, button_heads, match_rules, pressed, turns_of, with_screen
from rollmill.runtime.sweep import FOLDERS, remove_leftovers

try:
    import cv2
    from vizdoom import DoomGame
except ImportError as error:
    raise missing_engine(error) from error

# A player joins after the one before, so that they get the same numbers each time.
_JOIN_S = 0.15
# Seconds for a call that involves all engines: joining, a new episode, the tics of a step.
_JOIN_WITHIN_S, _STEP_WITHIN_S = 20, 10.0
_LATE_S = 0.003
_END_WITHIN_S = 5.0
_AGAIN_S = 0.05
# Tics after the start of an episode for which the host may be late.
_CAREFUL_TICS = 12
_WATCH_EVERY_S = 0.5


class DoomMatch:
    """A match in which each player is an agent, with PettingZoo's parallel interface.

    Observation: as :class:`rollmill.envs.vizdoom_env.VizdoomEnv` with a scenario. Reward: 1 for a frag, -1 for killing
    oneself. ``info`` has reward terms, and at the end of a match ``true_objective``: 1 for the only one with the most
    frags, else 0.

    Who hosts is drawn for every match, because a guest's commands reach the host's world one tic late.

    Args:
        scenario: What to tell the engines.
        players: 2 to 8.
        width: Width of the observation.
        height: Height of the observation.
        measurements: Whether to include numbers such as health.
        sound: Whether to include what is heard during the step.
        frameskip: Tics of a step.
        resolution: The engines' resolution.
        last_step: The step after which the caller ends a match; the metrics are given with it.
        render_mode: "rgb_array" or None; ``render`` returns the screens of all players side by side.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        players: int = 2,
        width: int = 128,
        height: int = 72,
        measurements: bool = True,
        sound: bool = False,
        frameskip: int = 2,
        resolution: str = "160x120",
        last_step: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        if not 2 <= players <= 8:
            raise ValueError(f"players={players}: give 2 to 8")
        self.possible_agents = [f"player_{number}" for number in range(players)]
        self.agents: list[str] = []
        fps = TICS_PER_SECOND / frameskip
        self.metadata: dict[str, Any] = {"name": "doom_match", "render_modes": ["rgb_array"], "render_fps": fps}
        self.render_mode = render_mode
        self._scenario, self._frameskip, self._resolution = scenario, frameskip, resolution
        self._size, self._measurements, self._hears = (width, height), measurements, sound
        if sound:
            check_sound()
        self._games: list[DoomGame] = []
        self._pids: set[int] = set()
        self._port: Port | None = None
        self._calls = EngineCalls(players)
        self._is_given_up = False
        # While the match is being built: what this process had started before.
        self._others: set[int] | None = None
        self._random = np.random.default_rng()
        self._last_step = last_step
        self._tics, self._steps = 0, 0
        self._careful_tics = 0
        self.deadline = math.inf
        probe = self._engine([])
        self._heads = button_heads(list(probe.get_available_buttons()), turns_of(scenario))
        self._num_buttons = len(scenario.buttons)
        self._statuses = [Status() for _ in self.possible_agents]
        self._screens: list[Array] = [np.zeros((probe.get_screen_height(), probe.get_screen_width(), 3), np.uint8)]
        self._screens *= players
        self._sounds: list[Array | None] = [None] * players
        # The engine that plays each agent.
        self._seat = np.arange(players)
        image = spaces.Box(0, 255, (height, width, 3), np.uint8)
        entries: dict[str, spaces.Space[Any]] = {"obs": image}
        if measurements:
            entries["measurements"] = spaces.Box(-np.inf, np.inf, (MEASUREMENTS,), np.float32)
        if sound:
            entries["sound"] = sound_space(frameskip)
        self._observation_space: spaces.Space[Any] = spaces.Dict(entries) if len(entries) > 1 else image
        self._action_space = spaces.MultiDiscrete([len(head) for head in self._heads])

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return the space of what a player sees."""
        return self._observation_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return the space of what a player does."""
        return self._action_space

    @property
    def is_stuck(self) -> bool:
        """Whether a call cannot return: an engine is gone, or it takes too long; asked by the watch."""
        if self.deadline == math.inf:
            return False
        return time.monotonic() > self.deadline or not all(map(is_alive, self._pids))

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start a match.

        Raises:
            RuntimeError: An engine has ended; the match must be built again.
        """
        if seed is not None:
            self._random = np.random.default_rng(seed)
        engine_seed = int(self._random.integers(2**32, dtype=np.uint32))
        for game in self._games:
            game.set_seed(engine_seed)
        is_first = not self._games
        with self._within(_JOIN_WITHIN_S if is_first else _STEP_WITHIN_S):
            if is_first:
                self._join(engine_seed)
            else:
                self._all([game.new_episode for game in self._games])
                self._careful_tic(looks=True)
            self._careful_tics = _CAREFUL_TICS
        self._seat = self._random.permutation(len(self._games))
        self._tics, self._steps = int(self._games[0].get_episode_time()), 0
        self.agents = list(self.possible_agents)
        for number, variables in enumerate(self._look()):
            self._statuses[number].begin(variables)
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Let all players hold their buttons for ``frameskip`` tics, or until the end of the match."""
        games = self._games
        for number, agent in enumerate(self.possible_agents):
            games[self._seat[number]].set_action(pressed(self._heads, actions[agent], self._num_buttons))
        skip = min(self._frameskip, max(1, self._scenario.tics - self._tics))
        with self._within(_STEP_WITHIN_S):
            careful = min(skip, self._careful_tics)
            self._careful_tics -= careful
            for tic in range(careful):
                self._careful_tic(looks=tic == skip - 1)
            if careful < skip:
                self._result(self._calls.submit(self._advance, skip - careful))
        self._tics += skip
        self._steps += 1
        is_over = self._tics >= self._scenario.tics
        rewards: dict[str, float] = {}
        infos: dict[str, dict[str, Any]] = {}
        for number, variables in enumerate(self._look()):
            frags, terms = self._statuses[number].take(variables, is_last=is_over)
            rewards[self.agents[number]] = frags
            infos[self.agents[number]] = {"reward_terms": terms}
        agents = self.agents
        # At every step, because a time limit of the run's may make it the last one.
        for agent, won in zip(agents, self._winners(), strict=True):
            infos[agent]["true_objective"] = won
        if is_over or self._steps == self._last_step:
            for agent, status in zip(agents, self._statuses, strict=True):
                infos[agent]["metrics"] = status.totals
        if is_over:
            self.agents = []
        return (
            self._observations(),
            rewards,
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, is_over),
            infos,
        )

    def render(self) -> Array:
        """Return the screens of all players, uint8 ``[H, N W, 3]``."""
        return np.concatenate(self._screens, axis=1)

    def close(self) -> None:
        """End the engines."""
        # Engines that wait for each other would not end by themselves.
        self.end_engines()
        games, self._games = self._games, []
        if not self._wait_for_calls():
            _unfinished.extend(games)
            games = []
        self._calls.end()
        for game in games:
            with contextlib.suppress(Exception):
                game.close()
        if self._port is not None:
            self._port.close()
            self._port = None

    def end_engines(self) -> None:
        """Kill all engines of the match, so that every call of theirs fails."""
        pids, self._pids = self._pids, set()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _engine(self, arguments: Sequence[str]) -> DoomGame:
        game = with_screen(DoomGame(), self._resolution)
        add_scenario(game, self._scenario)
        if self._hears:
            enable_sound(game, self._frameskip)
        game.set_episode_timeout(0)
        game.add_game_args(" ".join(arguments))
        return game

    def _join(self, seed: int) -> None:
        """Start the engines, one after another."""
        players = len(self.possible_agents)
        self._port = Port()
        limit = f"+viz_connect_timeout {_JOIN_WITHIN_S - 5}"
        rules = f"{match_rules(self._scenario)} {limit}"
        games = [self._engine([f"-host {players} -port {self._port.number}", rules, "+name player_0"])]
        for number in range(1, players):
            games.append(self._engine([f"-join 127.0.0.1 -port {self._port.number} {limit} +name player_{number}"]))
        self._others = children()
        started: list[Future[Any]] = []
        # The engines tell about their network on the standard output, and need a folder once.
        with quiet(), tempfile.TemporaryDirectory(prefix=FOLDERS) as folder, contextlib.chdir(folder):
            _watch(self)
            self._games = games
            try:
                for game in games:
                    game.set_seed(seed)
                    protect_start(game)
                    started.append(self._calls.submit(game.init))
                    all_returned(started, _JOIN_S)
                    self._find_engines()
                while not all_returned(started, _WATCH_EVERY_S):
                    self._find_engines()
                    if not self._pids:
                        raise TimeoutError("all engines were ended while they started")
                self._find_engines()
            except BaseException:
                # Here, because they would create their folder again.
                self.end_engines()
                self._wait_for_calls()
                raise
        self._others = None

    def _all(self, calls: Sequence[Any]) -> None:
        """Call all engines at the same time."""
        for future in [self._calls.submit(call) for call in calls]:
            self._result(future)

    def _result(self, call: Future[Any]) -> Any:
        """Wait for a call of an engine.

        Raises:
            TimeoutError: The watch has ended the engines, and the call has not returned.
        """
        while self._pids:
            with contextlib.suppress(NotYet):
                return call.result(timeout=_WATCH_EVERY_S)
        return call.result(timeout=_END_WITHIN_S)

    def _wait_for_calls(self) -> bool:
        """Wait until no thread is in a call of an engine, which must not be closed meanwhile; False if that is long."""
        give_up = time.monotonic() + (0 if self._is_given_up else _END_WITHIN_S)
        while not self._calls.have_returned(_AGAIN_S):
            if time.monotonic() > give_up:
                self._is_given_up = True
                return False
            # An engine's process may begin after the call that starts it.
            self._find_engines()
            self.end_engines()
        return True

    def _find_engines(self) -> None:
        """Take note of new engines while the match is being built."""
        if self._others is not None:
            # A new set, because the watch may be going through the old one.
            self._pids = self._pids | (children() - self._others)

    def _careful_tic(self, *, looks: bool) -> None:
        """Advance by one tic soon after the start, when the host may be late and wait for the others.

        Args:
            looks: Whether to get the new state.
        """
        host, *guests = self._games
        first = self._calls.submit(host.advance_action, 1, looks)
        with contextlib.suppress(NotYet):
            first.result(timeout=_LATE_S)
        self._all([lambda game=game: game.advance_action(1, looks) for game in guests])
        self._result(first)

    def _advance(self, tics: int) -> None:
        """Advance by some tics, and get the new state."""
        for tic in range(tics):
            for game in self._games:  # The host first.
                game.advance_action(1, tic == tics - 1)

    def _look(self) -> Iterator[Any]:
        """Take each agent's screen and yield its variables."""
        for number, seat in enumerate(self._seat.tolist()):
            state = self._games[seat].get_state()
            if state is None or state.screen_buffer is None or state.game_variables is None:
                self.end_engines()
                raise RuntimeError(f"player {number} of a Doom match has no state: the match has ended by itself")
            self._screens[number] = state.screen_buffer
            if self._hears:
                self._sounds[number] = heard(state.audio_buffer)
            yield state.game_variables

    def _observations(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for number, agent in enumerate(self.possible_agents):
            image = cv2.resize(self._screens[number], self._size, interpolation=cv2.INTER_NEAREST)
            observation = {"obs": image}
            if self._measurements:
                observation["measurements"] = self._statuses[number].measurements()
            if (sound := self._sounds[number]) is not None:
                observation["sound"] = sound
            found[agent] = observation if len(observation) > 1 else image
        return found

    def _winners(self) -> list[float]:
        frags = [status.totals["frags"] for status in self._statuses]
        return [float(own == max(frags) and frags.count(own) == 1) for own in frags]

    @contextlib.contextmanager
    def _within(self, seconds: float) -> Iterator[None]:
        """Let the watch end the engines if the block takes longer.

        Raises:
            RuntimeError: A call of an engine has failed, most likely because one of the match has ended.
        """
        self.deadline = time.monotonic() + seconds
        began = time.time()
        try:
            yield
        except Exception as error:
            self.end_engines()
            self._wait_for_calls()
            remove_leftovers(began)
            raise RuntimeError(
                f"an engine of a Doom match of {len(self.possible_agents)} players has ended or hung "
                f"({type(error).__name__}: {str(error)[:200]}); all of its engines were ended"
            ) from error
        finally:
            self.deadline = math.inf


# Engines whose calls have not returned, although their processes were ended: to close or free them would crash.
_unfinished: list[DoomGame] = []
_watched: weakref.WeakSet[DoomMatch] = weakref.WeakSet()
_watching = threading.Lock()
_watcher: list[threading.Thread] = []


def _watch(match: DoomMatch) -> None:
    """Watch a match until it is gone, in one thread of the process."""
    with _watching:
        _watched.add(match)
        if not _watcher or not _watcher[0].is_alive():
            _watcher[:] = [threading.Thread(target=_end_slow_matches, name="doom watch", daemon=True)]
            _watcher[0].start()


def _end_slow_matches() -> None:
    while True:
        time.sleep(_WATCH_EVERY_S)
        with _watching:
            matches = list(_watched)
        for match in matches:
            if match.is_stuck:
                match.end_engines()

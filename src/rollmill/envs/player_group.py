"""A group of EnvPool's games, in which players take turns, stepped in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from rollmill.envs.actions import ActionCodec
from rollmill.envs.checks import RowChecks
from rollmill.envs.env_builder import EnvBuilder, seed_of_rebuild
from rollmill.envs.errors import RollmillEnvError, UnsupportedSpace, failures
from rollmill.envs.failures import RestartBudget
from rollmill.envs.info_metrics import InfoMetrics
from rollmill.envs.row_info import RowInfo
from rollmill.envs.spaces import ObservationCodec, action_spec
from rollmill.envs.views import Array, ObservationView, OutcomeView
from rollmill.specs import BoxActions

CURRENT_PLAYER = "current_player"
LEGAL_ACTIONS = "legal_action_mask"


class PlayerGroup:
    """Steps a pool of games with ``info["current_player"]``; row ``e * A + a`` is player a of game e.

    The pool resets a finished game in the next step. No player acts at that step, unless the game was truncated, when
    every player sees the true final observation.

    Attributes:
        num_rows: Rows of the group.
        failures: Failures followed by a rebuild, with tracebacks (only with ``on_failure="restart"``); the reader
            may clear the list.
        metrics: Empty: the games give no metrics.
        resets_next: bool, for each game, whether it is over and the next step resets it.
        episodes: int64, for each game, how often it has begun.
    """

    def __init__(
        self,
        make_pool: Callable[[Sequence[int]], Any],
        *,
        agents: Sequence[str],
        seeds: Sequence[int],
        first_index: int = 0,
        name: str = "environment",
        box: BoxActions = "clip",
        on_failure: Literal["stop", "restart"] = "stop",
        budget: RestartBudget | None = None,
        check_finite: bool = True,
    ) -> None:
        """Build the pool.

        Args:
            make_pool: Builds it for ``len(seeds)`` games.
            agents: Names of a game's players, in the order of the rows.
            seeds: One seed for each game.
            first_index: Index of the first game in the whole run, for messages.
            name: The game's name, for messages.
            box: Conversion of continuous actions (see ``ActionCodec``).
            on_failure: What to do when the pool raises; a rebuild replaces all of its games.
            budget: Budget of rebuilds, shared by the groups of a worker.
            check_finite: Check for NaN and infinity.

        Raises:
            EnvironmentFailure: The constructor raises and no rebuild is left.
            UnsupportedSpace: Slots do not support the spaces.
        """
        games, players = len(seeds), len(agents)
        self.num_rows = games * players
        self._players = players
        self._seeds = [int(s) for s in seeds]
        self._rebuilds = 0
        self._builder = EnvBuilder(
            lambda: make_pool(self._present_seeds()),
            name=name,
            first_index=first_index,
            on_failure=on_failure,
            budget=budget,
        )
        self.failures = self._builder.failures
        self.metrics = InfoMetrics()
        self._pool: Any = self._builder.build(0)
        self.observation_space = self._pool.observation_space
        self.action_space = self._pool.action_space
        action = action_spec(self.action_space)
        self._actions = ActionCodec(action, box)
        self._checks = RowChecks(
            name, ObservationCodec(self.observation_space), action, first_index, check_finite, agents
        )
        self._clock = 0
        self._first_rows = np.arange(games) * players
        self._current = np.zeros(games, np.int64)
        self.resets_next = np.zeros(games, bool)
        self.episodes = np.zeros(games, np.int64)
        self._turn_is_real = np.zeros(self.num_rows, bool)
        # Rows whose player has not acted in the present game.
        self._is_new = np.ones(self.num_rows, bool)
        self._returns = np.zeros(self.num_rows, np.float64)
        self._length = np.zeros(self.num_rows, np.int32)

    @property
    def rebuilds(self) -> Array:
        """How often each game has been rebuilt, int64 ``[num_envs]``."""
        return np.full(len(self._first_rows), self._rebuilds, np.int64)

    def reset(self, into: ObservationView) -> None:
        """Start every game; see ``Group.reset``."""
        self._clock = 0
        try:
            self._begin(into)
        except RollmillEnvError:
            raise
        except failures() as error:
            self._rebuild("reset", error, into)
        self._checks.observation(into, 0)

    def step(
        self, discrete: Array | None, continuous: Array | None, into: ObservationView, outcome: OutcomeView
    ) -> None:
        """Step or reset every game once; see ``Group.step``.

        Raises:
            EnvironmentFailure: The pool raises and no rebuild is left.
            NonFiniteObservation: ``check_finite`` finds NaN or infinity.
        """
        self._clock += 1
        rows, was_real = self._first_rows + self._current, self._turn_is_real
        chosen = [None if numbers is None else numbers[rows] for numbers in (discrete, continuous)]
        outcome.episode_return.fill(np.nan)
        outcome.episode_length.fill(0)
        RowInfo.clear(outcome)
        try:
            observation, reward, terminated, truncated, info = self._pool.step(_native(self._actions, *chosen))
        except failures() as error:
            self._rebuild("step", error, into)
            for array in (outcome.reward, outcome.terminated, outcome.truncated, outcome.valid):
                array.fill(0)
            return
        begins = self.resets_next
        self._checks.reward_batch(reward, outcome.reward, self._clock)
        np.copyto(outcome.valid, was_real)
        self._returns += outcome.reward
        self._length += was_real
        if begins.any():
            self.episodes += begins
            begun = np.repeat(begins, self._players)
            outcome.reward[begun] = 0.0
            self._returns[begun] = 0.0
            self._length[begun] = 0
            self._is_new[begun] = True
            terminated, truncated = terminated & ~begins, truncated & ~begins
        ended = terminated | truncated
        self.resets_next = ended
        # A player that has not acted has no episode that could end.
        played = ~self._is_new
        np.logical_and(np.repeat(terminated, self._players), played, out=outcome.terminated)
        np.logical_and(np.repeat(truncated, self._players), played, out=outcome.truncated)
        if ended.any():
            of_ended = np.repeat(ended, self._players) & played
            outcome.episode_return[of_ended] = self._returns[of_ended]
            outcome.episode_length[of_ended] = self._length[of_ended]
        self._show(observation, info, into, ended, outcome.truncated & ~outcome.terminated)
        self._checks.reward(outcome.reward, self._clock)
        self._checks.observation(into, self._clock)

    def snapshot(self) -> bytes | None:
        """Return None: a pool cannot be saved."""
        return None

    def restore(self, snapshot: bytes) -> None:
        """Raise: no pool was ever saved."""
        raise NotImplementedError("pools of games are not saved")

    def close(self) -> None:
        """Close the pool."""
        pool, self._pool = self._pool, None
        if pool is not None:
            self._builder.close([pool])

    def _show(self, observation: Any, info: Any, into: ObservationView, over: Array, final: Array) -> None:
        """Write an observation and who acts: the current players of games that go on, and ``final`` rows."""
        assert into.acts is not None, "the spec of a game names its players"
        self._checks.write_batch(observation, into, self._clock)
        np.copyto(self._current, info[CURRENT_PLAYER], casting="unsafe")
        rows = (self._first_rows + self._current)[~over]
        self._turn_is_real = np.zeros(self.num_rows, bool)
        self._turn_is_real[rows] = True
        np.logical_or(self._turn_is_real, final, out=into.acts)
        np.logical_and(self._turn_is_real, self._is_new, out=into.reset)
        self._is_new[rows] = False
        if into.action_mask is not None:
            into.action_mask.fill(True)
            into.action_mask[rows] = np.asarray(info[LEGAL_ACTIONS])[~over]
            self._checks.masks(into.action_mask, self._clock)

    def _begin(self, into: ObservationView) -> None:
        observation, info = self._pool.reset()
        self._returns.fill(0)
        self._length.fill(0)
        self._is_new.fill(True)
        self.episodes += 1
        self.resets_next = np.zeros(len(self._first_rows), bool)
        self._show(observation, info, into, self.resets_next, np.zeros(self.num_rows, bool))

    def _present_seeds(self) -> list[int]:
        if not self._rebuilds:
            return self._seeds
        return [seed_of_rebuild(seed, self._rebuilds) for seed in self._seeds]

    def _rebuild(self, where: str, error: BaseException, into: ObservationView) -> None:
        self._rebuilds += 1

        def start(pool: Any) -> None:
            self._pool = pool
            self._begin(into)

        self._builder.rebuild(self._pool, 0, where, self._clock, error, start)


def _native(codec: ActionCodec, discrete: Array | None, continuous: Array | None) -> Any:
    """Decode actions, one for each game; EnvPool takes choices as int32."""
    actions = codec.decode_batch(discrete, continuous)
    return actions.astype(np.int32) if actions.dtype == np.int64 else actions


def player_names(pool: Any, info: Any, name: str) -> tuple[str, ...]:
    """Return names for a game's players; empty where a pool's environments have one player.

    Raises:
        UnsupportedSpace: All players act at the same time.
    """
    players = info.get("players")
    if not isinstance(players, dict) or "env_id" not in players:
        return ()
    count = len(players["env_id"]) // len(info["env_id"])
    if count < 2:
        return ()
    if CURRENT_PLAYER not in info:
        raise UnsupportedSpace(
            f"{name} has {count} players who act at the same time: only EnvPool's games with current_player are "
            "supported, such as envpool/ConnectFour-v1"
        )
    return tuple(f"player_{index}" for index in range(count))

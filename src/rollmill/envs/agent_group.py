"""A group of Python environments with several agents, each of which is a row."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from rollmill.envs.actions import ActionCodec
from rollmill.envs.agent_apis import Agents, Turn, with_numbers
from rollmill.envs.checks import RowChecks
from rollmill.envs.env_builder import EnvBuilder, seed_of_rebuild
from rollmill.envs.errors import RollmillEnvError, failures
from rollmill.envs.failures import RestartBudget
from rollmill.envs.info_metrics import METRICS, InfoMetrics
from rollmill.envs.row_info import RowInfo
from rollmill.envs.shared_spaces import SharedSpaces, mask_in
from rollmill.envs.snapshots import restore_state, save_state
from rollmill.envs.spaces import ObservationCodec, action_spec
from rollmill.envs.views import Array, ObservationView, OutcomeView
from rollmill.specs import BoxActions

_NO_LIMIT = sys.maxsize

# The state of a group.
_STATE = (
    "_games",
    "_seeds",
    "_rebuilds",
    "_clock",
    "_ages",
    "resets_next",
    "episodes",
    "_turn_is_real",
    "_lives",
    "_is_new",
    "_returns",
    "_length",
)


class _End(NamedTuple):
    """The end of a row's episode; ``return_before`` lacks the last step's reward."""

    row: int
    terminated: bool
    truncated: bool
    return_before: float
    length: int


class AgentGroup:
    """Steps ``num_envs`` environments with PettingZoo's interface in one thread, with autoreset.

    Row ``e * A + a`` is agent a of environment e. An environment is reset as soon as the episode is over for all of its
    agents: in the same step if all were terminated, else in the next one, behind the true final observations of the
    truncated agents. See :mod:`rollmill.specs` for what is written at steps at which an agent does not act.

    Attributes:
        num_rows: Rows of the group.
        failures: Failures followed by a rebuild, with tracebacks (only with ``on_failure="restart"``); the reader
            may clear the list.
        metrics: Sums of what agents are given in ``info["metrics"]``; the rollout worker takes them out.
        resets_next: For each environment, whether its episode is over and the next step resets it.
        episodes: int64 ``[num_envs]``, episodes that have begun.
    """

    def __init__(
        self,
        make_env: Callable[[], Any],
        *,
        agents: Sequence[str],
        num_envs: int,
        seeds: Sequence[int],
        first_index: int = 0,
        name: str = "environment",
        box: BoxActions = "clip",
        max_episode_steps: int | None = None,
        on_failure: Literal["stop", "restart"] = "stop",
        budget: RestartBudget | None = None,
        check_finite: bool = True,
        reward_terms: Sequence[str] = (),
        shows_end: bool = False,
    ) -> None:
        """Build the environments.

        Args:
            make_env: Builds one environment; called again to rebuild one that failed.
            agents: Names of an environment's agents, in the order of the rows.
            num_envs: Number of environments.
            seeds: The seed of each environment's first reset.
            first_index: Index of the first one in the whole run, for messages.
            name: The environment's name, for messages.
            box: Conversion of continuous actions (see ``ActionCodec``).
            max_episode_steps: Truncate all agents after this many steps, in addition to the environment's own limits.
            on_failure: What to do when an environment raises.
            budget: Budget of rebuilds, shared by the groups of a worker.
            check_finite: Check for NaN and infinity.
            reward_terms: Names of the parts of the reward that are stored.
            shows_end: Reset in the next step in any case, so that the end of an episode can be rendered.

        Raises:
            EnvironmentFailure: A constructor raises and no rebuild is left.
            UnsupportedSpace: Slots do not support the spaces, or the environments differ in their agents.
        """
        if len(seeds) != num_envs:
            raise ValueError(f"{len(seeds)} seeds were given for {num_envs} environments: give one for each")
        self.num_rows = num_envs * len(agents)
        self._agents = tuple(agents)
        self._builder = EnvBuilder(make_env, name=name, first_index=first_index, on_failure=on_failure, budget=budget)
        self.failures = self._builder.failures
        self.metrics = InfoMetrics()
        self._row_info = RowInfo(reward_terms, name, len(agents))
        self._seeds = [int(s) for s in seeds]
        self._rebuilds = [0] * num_envs
        self._limit = max_episode_steps or _NO_LIMIT
        self._shows_end = shows_end
        self._clock = 0
        self._games: list[Agents] = []
        try:
            for index in range(num_envs):
                self._games.append(with_numbers(self._builder.build(index), agents))
        except failures():
            self.close()
            raise
        self._spaces = SharedSpaces(name, self._games[0].env)
        self.observation_space = self._spaces.observation
        self.action_space = self._spaces.action
        action = action_spec(self.action_space)
        self._actions = ActionCodec(action, box)
        self._checks = RowChecks(
            name, ObservationCodec(self.observation_space), action, first_index, check_finite, agents
        )
        self._ages = [0] * num_envs
        self.resets_next = np.zeros(num_envs, bool)
        self.episodes = np.zeros(num_envs, np.int64)
        # Rows whose next action is a transition: those that act, but for final observations.
        self._turn_is_real = np.zeros(self.num_rows, bool)
        self._lives = np.zeros(self.num_rows, bool)
        self._is_new = np.zeros(self.num_rows, bool)
        self._returns = np.zeros(self.num_rows, np.float64)
        self._length = np.zeros(self.num_rows, np.int32)

    @property
    def rebuilds(self) -> Array:
        """How often each environment has been rebuilt, int64 ``[num_envs]``."""
        return np.array(self._rebuilds, np.int64)

    def reset(self, into: ObservationView) -> None:
        """Start every environment's first episode with its seed; see ``Group.reset``."""
        self._clock = 0
        self._clear(into)
        for index, game in enumerate(self._games):
            try:
                self._begin_episode(index, game.reset(self._seeds[index]), into)
            except RollmillEnvError:
                raise
            except failures() as error:
                self._rebuild(index, "reset", error, into)
        self._check(into)

    def step(
        self, discrete: Array | None, continuous: Array | None, into: ObservationView, outcome: OutcomeView
    ) -> None:
        """Step or reset every environment once; see ``Group.step``.

        Raises:
            EnvironmentFailure: An environment raises and no rebuild is left.
            NonFiniteObservation: ``check_finite`` finds NaN or infinity.
        """
        self._clock += 1
        actions = self._actions.decode_rows(discrete, continuous)
        was_real, count = self._turn_is_real, len(self._agents)
        rewards: list[Any] = [0.0] * self.num_rows
        outcome.terminated.fill(False)
        outcome.truncated.fill(False)
        np.copyto(outcome.valid, was_real)
        outcome.episode_return.fill(np.nan)
        outcome.episode_length.fill(0)
        self._length += was_real
        self._turn_is_real = was_real.copy()
        self._clear(into)
        row_info = self._row_info if RowInfo.is_asked(outcome) else None
        if row_info is not None:
            row_info.clear(outcome)
        ends: list[_End] = []
        for index, game in enumerate(self._games):
            first = index * count
            where = "reset" if self.resets_next[index] else "step"
            try:
                if self.resets_next[index]:
                    self._begin_episode(index, game.reset(None), into)
                    continue
                turn = game.step(actions[first : first + count])
                lived = [] if row_info is None else self._lives[first : first + count].tolist()
                ends += self._take(index, turn, rewards, into)
                if row_info is not None:
                    row_info.see(turn.infos, self._length[first : first + count], is_over=bool(self.resets_next[index]))
                    for agent, info in turn.infos.items():
                        if info and lived[agent]:
                            row_info.write(first + agent, info, outcome)
                if self.resets_next[index] and not turn.shown and not self._shows_end:
                    where = "reset"
                    self._begin_episode(index, game.reset(None), into)
            except RollmillEnvError:
                raise
            except failures() as error:
                rows = slice(first, first + count)
                outcome.valid[rows] = False
                RowInfo.clear(outcome, rows)
                rewards[rows] = [0.0] * count
                ends = [end for end in ends if not first <= end.row < first + count]
                self._clear(into, rows)
                self._rebuild(index, where, error, into)
        self._checks.rewards(rewards, outcome.reward, self._clock)
        self._checks.reward(outcome.reward, self._clock, rewards)
        self._record(ends, outcome)
        self._check(into)

    def snapshot(self) -> bytes | None:
        """Pickle the environments and the state of their episodes; see ``SavableGroup.snapshot``."""
        return save_state(self, _STATE)

    def restore(self, snapshot: bytes) -> None:
        """Restore a snapshot; see ``SavableGroup.restore``."""
        self.close()
        restore_state(self, _STATE, snapshot)
        self._row_info.resume()

    def close(self) -> None:
        """Close every environment, even if closing one raises."""
        games, self._games = self._games, []
        self._builder.close([game.env for game in games])

    def _clear(self, into: ObservationView, rows: slice = slice(None)) -> None:
        """Write that no agent of these rows acts."""
        assert into.acts is not None, "the spec of a multi-agent environment names its agents"
        self._turn_is_real[rows] = False
        into.acts[rows] = False
        into.reset[rows] = False
        if into.action_mask is not None:
            into.action_mask[rows] = True

    def _begin_episode(self, index: int, turn: Turn, into: ObservationView) -> None:
        """Start an environment's episode with the turn that its reset led to."""
        rows = slice(index * len(self._agents), (index + 1) * len(self._agents))
        self.resets_next[index] = turn.is_over
        self.episodes[index] += 1
        self._ages[index] = 0
        self._returns[rows] = 0.0
        self._length[rows] = 0
        self._lives[rows] = True
        self._is_new[rows] = True
        self._show(rows.start, turn, into)

    def _take(self, index: int, turn: Turn, rewards: list[Any], into: ObservationView) -> list[_End]:
        """Take what a step has led to; returns the episodes that ended with it."""
        first, agents = index * len(self._agents), range(len(self._agents))
        for agent, reward in turn.rewards.items():
            if self._lives[first + agent]:
                rewards[first + agent] = reward
        ended = {agent: flags for agent, flags in turn.ended.items() if self._lives[first + agent]}
        # Agents that have not come yet have no episode that could end.
        present = [agent for agent in agents if self._lives[first + agent] and not self._is_new[first + agent]]
        self._ages[index] += 1
        if self._ages[index] >= self._limit and not turn.is_over:
            for agent in present:
                if agent not in ended:
                    # In games whose agents act in turn, one may have ended without having been told so.
                    terminated = self._games[index].has_terminated(agent)
                    ended[agent] = terminated, not terminated
                    if agent not in turn.rewards:
                        rewards[first + agent] = self._games[index].owed(agent)
                    if agent not in turn.shown:
                        turn.shown[agent] = _, info = self._games[index].observe(agent)
                        turn.infos.setdefault(agent, info)  # of what it has not been told since its last turn
            turn = turn._replace(acting=[], is_over=True)
        for agent in set(turn.shown).difference(turn.acting, present):
            del turn.shown[agent]
        if turn.is_over:
            self.resets_next[index] = True
            # Agents that have not ended by themselves end with the episode.
            ended |= {agent: (True, False) for agent in present if agent not in ended}
        ends = [
            _End(row, *ended[agent], float(self._returns[row]), int(self._length[row]))
            for agent, row in zip(agents, range(first, first + len(agents)), strict=True)
            if agent in ended and not self._is_new[row]
        ]
        for agent in ended:
            self._lives[first + agent] = False
        self._show(first, turn, into)
        return ends

    def _show(self, first: int, turn: Turn, into: ObservationView) -> None:
        """Write what a turn shows, and who acts."""
        assert into.acts is not None
        acting = set(turn.acting)
        for agent, info in turn.infos.items():
            if isinstance(info, dict) and METRICS in info:
                self.metrics.add(info[METRICS], first + agent)
        for agent, (observation, info) in turn.shown.items():
            row = first + agent
            self._checks.write_row(self._spaces.pad(observation, agent), row, into, self._clock)
            into.acts[row] = True
            if agent in acting:
                self._turn_is_real[row] = True
                into.reset[row] = self._is_new[row]
                self._is_new[row] = False
            if into.action_mask is not None:
                self._write_mask(row, agent, observation, info, into.action_mask, is_final=agent not in acting)

    def _write_mask(self, row: int, agent: int, observation: Any, info: Any, masks: Array, *, is_final: bool) -> None:
        raw = self._spaces.own_mask(mask_in(observation, info), agent)
        if raw is not None:
            masks[row] = self._checks.read_mask(raw, row)
            if is_final:
                self._checks.relax(masks, [row])
        elif not is_final:
            raise self._checks.missing_mask(row)

    def _record(self, ends: Sequence[_End], outcome: OutcomeView) -> None:
        """Write the ends of episodes. An episode that began in this step has no rewards yet."""
        begun = np.repeat([age == 0 for age in self._ages], len(self._agents))
        self._returns += np.where(begun, 0.0, outcome.reward)
        for end in ends:
            outcome.terminated[end.row] = end.terminated
            outcome.truncated[end.row] = end.truncated
            outcome.episode_return[end.row] = end.return_before + outcome.reward[end.row]
            outcome.episode_length[end.row] = end.length

    def _rebuild(self, index: int, where: str, error: BaseException, into: ObservationView) -> None:
        """Rebuild an environment until its reset succeeds, or raise."""

        def start(env: Any) -> None:
            self._rebuilds[index] += 1
            game = with_numbers(env, self._agents)
            self._begin_episode(index, game.reset(seed_of_rebuild(self._seeds[index], self._rebuilds[index])), into)
            self._games[index] = game

        self._builder.rebuild(self._games[index].env, index, where, self._clock, error, start)

    def _check(self, into: ObservationView) -> None:
        self._checks.observation(into, self._clock)
        if into.action_mask is not None:
            self._checks.masks(into.action_mask, self._clock)

"""A group of Python environments, stepped sequentially, that writes into a slot."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rollmill.envs.actions import ActionCodec
from rollmill.envs.checks import RowChecks
from rollmill.envs.env_builder import EnvBuilder, seed_of_rebuild
from rollmill.envs.errors import RollmillEnvError, failures
from rollmill.envs.failures import RestartBudget
from rollmill.envs.info_metrics import METRICS, InfoMetrics
from rollmill.envs.row_info import RowInfo
from rollmill.envs.snapshots import restore_state, save_state
from rollmill.envs.spaces import ACTION_MASK, ObservationCodec, action_spec
from rollmill.envs.views import Array, ObservationView, OutcomeView
from rollmill.specs import BoxActions

if TYPE_CHECKING:
    import gymnasium

_NO_LIMIT = sys.maxsize


# The state of a group.
_STATE = ("_envs", "_seeds", "_rebuilds", "_deadlines", "_clock", "_masked", "_returns", "_length")


class PythonGroup:
    """Steps ``num_envs`` Gymnasium environments in one thread, with autoreset.

    A row whose episode has ended shows its true final observation; the next step resets its environment instead of
    stepping it. To avoid a test in the loop, the row's entry in the list of step functions is replaced by a reset.

    Attributes:
        num_rows: Rows of the group.
        failures: Failures followed by a rebuild, with tracebacks (only with ``on_failure="restart"``); the reader
            may clear the list.
        metrics: What the environments give in ``info["metrics"]``, for whoever steps the group to take.
    """

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env[Any, Any]],
        *,
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
    ) -> None:
        """Build the environments.

        Args:
            make_env: Builds one environment; called again to rebuild one that failed.
            num_envs: Number of environments.
            seeds: The seed of each environment's first reset.
            first_index: Index of the first one in the whole run, for messages.
            name: The environment's name, for messages.
            box: Conversion of continuous actions (see ``ActionCodec``).
            max_episode_steps: Truncate episodes after this many agent steps, in addition to the environment's own
                limits.
            on_failure: What to do when an environment raises.
            budget: Budget of rebuilds, shared by the groups of a worker.
            check_finite: Check for NaN and infinity.
            reward_terms: Names of the parts of the reward that are stored.

        Raises:
            EnvironmentFailure: A constructor raises and no rebuild is left.
            UnsupportedSpace: Slots do not support the spaces.
        """
        if len(seeds) != num_envs:
            raise ValueError(f"{len(seeds)} seeds were given for {num_envs} environments: give one for each")
        self.num_rows = num_envs
        self._builder = EnvBuilder(make_env, name=name, first_index=first_index, on_failure=on_failure, budget=budget)
        self.failures = self._builder.failures
        self.metrics = InfoMetrics()
        self._row_info = RowInfo(reward_terms, name)
        self._seeds = [int(s) for s in seeds]
        self._rebuilds = [0] * num_envs
        self._limit = max_episode_steps or _NO_LIMIT
        self._envs: list[Any] = []
        self._steps: list[Callable[[Any], Any]] = []
        self._deadlines: list[int] = []
        self._clock = 0
        self._masked: list[int] = []
        try:
            for row in range(num_envs):
                self._envs.append(self._builder.build(row))
        except failures():
            self.close()
            raise
        self.observation_space = self._envs[0].observation_space
        self.action_space = self._envs[0].action_space
        self._codec = ObservationCodec(self.observation_space)
        action = action_spec(self.action_space)
        self._actions = ActionCodec(action, box)
        self._checks = RowChecks(name, self._codec, action, first_index, check_finite)
        self._plain = self._codec.plain and not self._codec.has_mask
        self._returns = np.zeros(num_envs, np.float64)
        self._length = np.zeros(num_envs, np.int32)

    def reset(self, into: ObservationView) -> None:
        """Start every environment's first episode with its seed; see ``Group.reset``."""
        self._clock = 0
        self._masked = []
        self._returns.fill(0)
        self._length.fill(0)
        self._steps = [env.step for env in self._envs]
        self._deadlines = [self._limit] * self.num_rows
        for row, env in enumerate(self._envs):
            try:
                observation, info = env.reset(seed=self._seeds[row])
                if info and METRICS in info:
                    self.metrics.add(info[METRICS], row)
                self._write(row, observation, info, into)
            except RollmillEnvError:
                raise
            except failures() as error:
                self._rebuild(row, "reset", error, into)
        into.reset.fill(True)
        self._checks.observation(into, 0)
        if into.action_mask is not None:
            self._checks.masks(into.action_mask, 0)

    def step(
        self, discrete: Array | None, continuous: Array | None, into: ObservationView, outcome: OutcomeView
    ) -> None:
        """Step or reset every environment once; see ``Group.step``.

        Raises:
            EnvironmentFailure: An environment raises and no rebuild is left.
            NonFiniteObservation: ``check_finite`` finds NaN or infinity.
        """
        self._clock = clock = self._clock + 1
        steps, deadlines, num_rows = self._steps, self._deadlines, self.num_rows
        rewards: list[Any] = [0.0] * num_rows
        ended: list[tuple[int, bool, bool]] = []
        failed: list[int] = []
        plain = into.observation["obs"] if self._plain and into.action_mask is None else None
        shape, dtype = (None, None) if plain is None else (plain.shape[1:], plain.dtype)
        actions = self._actions.decode_rows(discrete, continuous)
        row_info = self._row_info if RowInfo.is_asked(outcome) else None
        if row_info is not None:
            row_info.clear(outcome)
        first = row = 0
        while True:
            # One `try` around the loop instead of one per row; the loop resumes after a row that failed.
            try:
                for row in range(first, num_rows):
                    observation, rewards[row], terminated, truncated, info = steps[row](actions[row])
                    if info and METRICS in info:
                        self.metrics.add(info[METRICS], row)
                    if row_info is not None and row not in self._masked:
                        row_info.write(row, info, outcome)
                    # No conversion needed; NumPy's built-in dtypes are singletons.
                    as_stored = type(observation) is np.ndarray and observation.dtype is dtype
                    if plain is not None and as_stored and observation.shape == shape:
                        plain[row] = observation
                    else:
                        self._write(row, observation, info, into, final=bool(terminated or truncated))
                    if terminated or truncated or clock >= deadlines[row]:
                        ended.append((row, bool(terminated), bool(truncated)))
                break
            except RollmillEnvError:
                raise
            except failures() as error:
                rewards[row] = 0.0
                where = "reset" if row in self._masked else "step"
                self._rebuild(row, where, error, into)
                failed.append(row)
                first = row + 1
        self._record_outcomes(rewards, ended, failed, into, outcome)

    def _record_outcomes(
        self,
        rewards: list[Any],
        ended: list[tuple[int, bool, bool]],
        failed: list[int],
        into: ObservationView,
        outcome: OutcomeView,
    ) -> None:
        """Write the loop's results: outcomes, counters, and the rows to reset next."""
        self._checks.rewards(rewards, outcome.reward, self._clock)
        outcome.terminated.fill(False)
        outcome.truncated.fill(False)
        outcome.valid.fill(True)
        outcome.episode_return.fill(np.nan)
        outcome.episode_length.fill(0)
        into.reset.fill(False)
        self._returns += outcome.reward
        self._length += 1
        restarted = self._masked + failed if failed else self._masked
        if restarted:
            RowInfo.clear(outcome, restarted)
        for row in restarted:
            outcome.valid[row] = False
            into.reset[row] = True
            self._returns[row] = 0.0
            self._length[row] = 0
            self._steps[row] = self._envs[row].step
            if self._limit != _NO_LIMIT:
                self._deadlines[row] = self._clock + self._limit
        self._masked = []
        for row, terminated, truncated in ended:
            outcome.terminated[row] = terminated
            outcome.truncated[row] = truncated or not terminated
            outcome.episode_return[row] = self._returns[row]
            outcome.episode_length[row] = self._length[row]
            self._masked.append(row)
            self._deadlines[row] = _NO_LIMIT
            self._steps[row] = self._reset_instead(row)
        self._checks.reward(outcome.reward, self._clock, rewards)
        self._checks.observation(into, self._clock)
        if into.action_mask is not None:
            if self._masked:
                self._checks.relax(into.action_mask, self._masked)
            self._checks.masks(into.action_mask, self._clock)

    def snapshot(self) -> bytes | None:
        """Pickle the environments and the state of their episodes; see ``SavableGroup.snapshot``."""
        return save_state(self, _STATE)

    def restore(self, snapshot: bytes) -> None:
        """Restore a snapshot; see ``SavableGroup.restore``."""
        self.close()
        restore_state(self, _STATE, snapshot)
        self._row_info.resume()
        self._steps = [env.step for env in self._envs]
        for row in self._masked:
            self._steps[row] = self._reset_instead(row)

    def close(self) -> None:
        """Close every environment, even if closing one raises."""
        envs, self._envs, self._steps = self._envs, [], []
        self._builder.close(envs)

    def _reset_instead(self, row: int) -> Callable[[Any], Any]:
        env = self._envs[row]

        def step(_: Any) -> tuple[Any, float, bool, bool, Any]:
            observation, info = env.reset()
            return observation, 0.0, False, False, info

        return step

    def _write(self, row: int, observation: Any, info: Any, into: ObservationView, final: bool = False) -> None:
        self._checks.write_row(observation, row, into, self._clock)
        if into.action_mask is None:
            return
        raw = self._codec.mask_of(observation) if self._codec.has_mask else info.get(ACTION_MASK)
        if raw is not None:
            into.action_mask[row] = self._checks.read_mask(raw, row)
        elif final:
            into.action_mask[row] = True
        else:
            raise self._checks.missing_mask(row)

    def _rebuild(self, row: int, where: str, error: BaseException, into: ObservationView) -> None:
        """Rebuild an environment until its reset succeeds, or raise."""

        def start(env: Any) -> None:
            self._rebuilds[row] += 1
            observation, info = env.reset(seed=seed_of_rebuild(self._seeds[row], self._rebuilds[row]))
            self._write(row, observation, info, into)

        self._envs[row] = self._builder.rebuild(self._envs[row], row, where, self._clock, error, start)
        self._steps[row] = self._envs[row].step

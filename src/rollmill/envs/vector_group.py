"""A group that is one native vector environment, whatever its autoreset mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from rollmill.envs.actions import ActionCodec
from rollmill.envs.checks import RowChecks
from rollmill.envs.env_builder import EnvBuilder, seed_of_rebuild
from rollmill.envs.errors import RollmillEnvError, UnsupportedSpace, failures
from rollmill.envs.failures import RestartBudget
from rollmill.envs.info_metrics import METRICS, InfoMetrics
from rollmill.envs.row_info import RowInfo
from rollmill.envs.snapshots import restore_state, save_state
from rollmill.envs.spaces import ACTION_MASK, ObservationCodec, action_spec
from rollmill.envs.views import Array, ObservationView, OutcomeView
from rollmill.specs import BoxActions

_MOST_HIDDEN_ENDS = 100
# The state of a group.
_STATE = (
    "_env",
    "_seeds",
    "_rebuilds",
    "_clock",
    "_masked",
    "_any_masked",
    "_hidden_ends",
    "_lives",
    "_return",
    "_length",
)
_MODES = {"NextStep": "next_step", "SameStep": "same_step", "Disabled": "disabled"}


def own_seeds(env: Any, seeds: Sequence[int]) -> Any:
    """Return the seed argument of a Gymnasium vector environment's ``reset``.

    Vectors of separate environments (Sync- and AsyncVectorEnv) take a list of seeds; all others take one integer,
    because they may have a single generator for all rows.
    """
    if isinstance(getattr(env, "unwrapped", env), (SyncVectorEnv, AsyncVectorEnv)):
        return [int(s) for s in seeds]
    return int(seeds[0])


class VectorGroup:
    """Steps a ``gymnasium.vector.VectorEnv`` (or an EnvPool) in one call, in the layout of :mod:`rollmill.specs`.

    ======== ===================================================================================================
    NextStep native: the vector masks the same rows as we do
    SameStep after a termination comes the first observation of the next episode, since nothing is bootstrapped from a
             final one; nothing is masked. After a truncation comes ``info["final_obs"]`` in a masked row, while the
             environment takes its first step from an observation that no policy saw: that transition is masked (its
             reward counts in ``episode_return``), and the second observation has ``reset`` True
    Disabled ended rows are reset at once with ``options={"reset_mask": ...}``, which makes it SameStep, with the
             vector's last observation as the final one
    ======== ===================================================================================================

    Attributes:
        num_rows: Rows of the group.
        failures: Failures followed by a rebuild, with tracebacks (only with ``on_failure="restart"``); the reader
            may clear the list.
        metrics: What the environments give in ``info["metrics"]``, for whoever steps the group to take.
    """

    def __init__(
        self,
        make_vector: Callable[[Sequence[int]], Any],
        *,
        seeds: Sequence[int],
        first_index: int = 0,
        name: str = "environment",
        reset_seed: Callable[[Any, Sequence[int]], Any] = own_seeds,
        box: BoxActions = "clip",
        life_key: str | None = None,
        on_failure: Literal["stop", "restart"] = "stop",
        budget: RestartBudget | None = None,
        check_finite: bool = True,
        reward_terms: Sequence[str] = (),
    ) -> None:
        """Build the vector environment.

        Args:
            make_vector: Builds it for ``len(seeds)`` environments; some constructors need the seeds.
            seeds: One seed for each environment.
            first_index: Index of the first environment in the whole run, for messages.
            name: The environment's name, for messages.
            reset_seed: ``reset_seed(env, seeds)`` is passed to ``env.reset(seed=...)``.
            box: Conversion of continuous actions (see ``ActionCodec``).
            life_key: Entry of ``info`` that counts lives (int ``[B]``): losing one is reported as ``terminated``
                although the episode continues.
            on_failure: What to do when the vector raises; a rebuild replaces the whole vector and masks every row.
            budget: Budget of rebuilds, shared by the groups of a worker.
            check_finite: Check for NaN and infinity.
            reward_terms: Names of the parts of the reward that are stored.

        Raises:
            EnvironmentFailure: The constructor raises and no rebuild is left.
            UnsupportedSpace: Slots do not support the spaces, or the vector has another size.
        """
        self.num_rows = len(seeds)
        self.metrics = InfoMetrics()
        self._row_info = RowInfo(reward_terms, name)
        self._make_vector = make_vector
        self._seeds = [int(s) for s in seeds]
        self._rebuilds = 0
        self._builder = EnvBuilder(
            self._construct,
            name=name,
            first_index=first_index,
            on_failure=on_failure,
            budget=budget,
            num_rows=self.num_rows,
        )
        self.failures = self._builder.failures
        self._reset_seed = reset_seed
        self._name = name
        self._life_key = life_key
        self._clock = 0
        self._env: Any = None
        self._env = self._builder.build(0)
        self._mode = _autoreset_mode(self._env)
        self.observation_space = self._env.single_observation_space
        self.action_space = self._env.single_action_space
        self._codec = ObservationCodec(self.observation_space)
        action = action_spec(self.action_space)
        self._actions = ActionCodec(action, box)
        self._checks = RowChecks(name, self._codec, action, first_index, check_finite)
        # Rows whose environment does not act from the observation shown: their next step is masked.
        self._masked = np.zeros(self.num_rows, bool)
        self._any_masked = False
        self._hidden_ends = np.zeros(self.num_rows, np.int64)
        self._lives = np.zeros(self.num_rows, np.int64)
        self._every_row = np.ones(self.num_rows, bool)
        self._return = np.zeros(self.num_rows, np.float64)
        self._length = np.zeros(self.num_rows, np.int32)

    def reset(self, into: ObservationView) -> None:
        """Start every environment's first episode with its seed; see ``Group.reset``."""
        self._clock = 0
        try:
            self._first_observation(self._seeds, into)
        except RollmillEnvError:
            raise
        except failures() as error:
            self._rebuild("reset", error, into)
        self._checks.observation(into, 0)

    def step(
        self, discrete: Array | None, continuous: Array | None, into: ObservationView, outcome: OutcomeView
    ) -> None:
        """Step the vector once; see ``Group.step``.

        Raises:
            EnvironmentFailure: The vector raises and no rebuild is left.
            NonFiniteObservation: ``check_finite`` finds NaN or infinity.
        """
        self._clock += 1
        actions = self._actions.decode_batch(discrete, continuous)
        masked = self._masked
        try:
            observation, reward, terminated, truncated, info = self._env.step(actions)
        except failures() as error:
            self._rebuild("step", error, into)
            _write_failed(outcome)
            return
        self._add_metrics(info)
        if RowInfo.is_asked(outcome):
            self._write_row_info(info, outcome, np.logical_or(terminated, truncated))
        self._checks.write_batch(observation, into, self._clock)
        self._checks.reward_batch(reward, outcome.reward, self._clock)
        # Some simulators give 0 and 1.
        np.copyto(outcome.terminated, terminated, casting="unsafe")
        np.copyto(outcome.truncated, truncated, casting="unsafe")
        np.logical_not(masked, out=outcome.valid)
        np.copyto(into.reset, masked)
        outcome.episode_return.fill(np.nan)
        outcome.episode_length.fill(0)
        self._return += outcome.reward
        self._length += 1
        if self._any_masked:
            if self._mode == "next_step":
                self._return[masked] = 0.0
                self._length[masked] = 0
                outcome.terminated[masked] = False
                outcome.truncated[masked] = False
            outcome.reward[masked] = 0.0
        ended = outcome.terminated | outcome.truncated
        any_ended = bool(ended.any())
        self._masked, self._any_masked = ended, any_ended
        if any_ended:
            if self._mode != "next_step":
                # A terminated episode's final observation is not needed: nothing is bootstrapped from it.
                self._masked = outcome.truncated & ~outcome.terminated
                self._any_masked = bool(self._masked.any())
                np.logical_or(into.reset, ended & ~self._masked, out=into.reset)
            self._end(ended, masked, info, into, outcome)
        if self._life_key is not None:
            self._lose_lives(info[self._life_key], outcome, ended)
        if any_ended and self._mode == "disabled":
            # Reset now, because the masks of these first observations restrict the next actions. The result of a
            # partial reset is valid for the reset rows only.
            self._write_mask(observation, info, into, ~ended)
            try:
                observation, info = self._env.reset(options={"reset_mask": ended.copy()})
            except failures() as error:
                self._rebuild("reset", error, into)
                _write_failed(outcome)
                return
            self._add_metrics(info)
            self._write_mask(observation, info, into, ended)
            for row in np.flatnonzero(ended & ~self._masked).tolist():
                self._checks.write_row(_row_of(observation, row), row, into, self._clock)
        else:
            self._write_mask(observation, info, into, self._every_row)
        if into.action_mask is not None:
            self._checks.masks(into.action_mask, self._clock)
        self._checks.reward(outcome.reward, self._clock)
        self._checks.observation(into, self._clock)

    def snapshot(self) -> bytes | None:
        """Pickle the vector and the state of its episodes; see ``SavableGroup.snapshot``."""
        return save_state(self, _STATE)

    def restore(self, snapshot: bytes) -> None:
        """Restore a snapshot; see ``SavableGroup.restore``."""
        self.close()
        restore_state(self, _STATE, snapshot)
        self._row_info.resume()

    def close(self) -> None:
        """Close the vector environment."""
        env, self._env = self._env, None
        if env is not None:
            self._builder.close([env])

    def _end(self, ended: Array, was_masked: Array, info: Any, into: ObservationView, outcome: OutcomeView) -> None:
        """Report the rows that have ``ended``, and write the final observation of those that are masked now."""
        outcome.episode_return[ended] = self._return[ended]
        outcome.episode_length[ended] = self._length[ended]
        self._return[ended] = 0.0
        self._length[ended] = 0
        # An episode of a single step can end inside a masked row; its end is counted without a transition.
        outcome.terminated[was_masked] = False
        outcome.truncated[was_masked] = False
        if self._mode == "next_step":
            if _given_mode(self._env) is None and not {"final_obs", "final_observation"}.isdisjoint(info):
                raise UnsupportedSpace(
                    f"{self._name} gives info['final_obs'], as vectors do that reset in the step in which an episode "
                    "ends, but without metadata['autoreset_mode'] it is taken to reset in the next one: set that to "
                    "gymnasium.vector.AutoresetMode.SAME_STEP or NEXT_STEP"
                )
            return
        self._hidden_ends[ended] = np.where(was_masked & self._masked, self._hidden_ends + 1, 0)[ended]
        if int(self._hidden_ends.max()) >= _MOST_HIDDEN_ENDS:
            raise UnsupportedSpace(
                f"{_MOST_HIDDEN_ENDS} episodes in succession of {self._name} were truncated after a single step, which "
                "a vector with autoreset SAME_STEP or DISABLED hides: nothing could be learned from them; build "
                "it with autoreset_mode=NEXT_STEP"
            )
        if self._mode == "same_step" and isinstance(final := info.get("final_info"), dict):
            self._add_metrics(final)
        if self._mode == "same_step" and self._any_masked:
            final = info.get("final_obs", info.get("final_observation"))
            if final is None:
                raise UnsupportedSpace(
                    f"{self._name} resets in the same step but gives no info['final_obs']: the final observation is "
                    "needed to bootstrap truncated episodes; build it with autoreset_mode=NEXT_STEP"
                )
            for row in np.flatnonzero(self._masked).tolist():
                self._checks.write_row(_row_of(final, row), row, into, self._clock)

    def _lose_lives(self, lives: Array, outcome: OutcomeView, ended: Array) -> None:
        lost = (lives < self._lives) & outcome.valid & ~ended
        np.logical_or(outcome.terminated, lost, out=outcome.terminated)
        np.copyto(self._lives, lives)

    def _write_row_info(self, info: Any, outcome: OutcomeView, ended: Array) -> None:
        self._row_info.clear(outcome)
        # With SAME_STEP the present entries of ended rows are those of the next episode's reset.
        final = info.get("final_info") if self._mode == "same_step" else None
        if not isinstance(final, dict):
            self._row_info.write_rows(info, outcome)
        else:
            if not ended.all():
                self._row_info.write_rows(info, outcome)
            self._row_info.write_rows(final, outcome, only=ended)
        self._row_info.clear(outcome, self._masked)

    def _add_metrics(self, info: Any) -> None:
        if METRICS in info:
            self.metrics.add_rows(info[METRICS], self.num_rows)

    def _write_mask(self, observation: Any, info: Any, into: ObservationView, rows: Array) -> None:
        """Write the masks of the rows selected by bool ``rows [B]``."""
        if into.action_mask is None:
            return
        raw = self._codec.mask_of(observation) if self._codec.has_mask else info.get(ACTION_MASK)
        # With NEXT_STEP a masked row's action is ignored; with the other modes it is the first of the next episode,
        # whose mask the vector has returned already.
        ignored = self._masked if self._mode == "next_step" else np.zeros(self.num_rows, bool)
        # Gymnasium's vectors fill in zeros for environments that give no mask.
        given = None if self._codec.has_mask else info.get(f"_{ACTION_MASK}")
        is_array = isinstance(raw, np.ndarray) and raw.dtype.kind in "biuf" and raw.shape == into.action_mask.shape
        if is_array:
            whole = rows if given is None else rows & given
            np.copyto(into.action_mask, raw, where=whole[:, None], casting="unsafe")
            rows = rows & ~whole
        for row in np.flatnonzero(rows).tolist():
            if raw is not None and (given is None or given[row]):
                into.action_mask[row] = self._checks.read_mask(_row_of(raw, row), row)
            elif ignored[row]:
                into.action_mask[row] = True
            else:
                raise self._checks.missing_mask(row)
        if ignored.any():
            self._checks.relax(into.action_mask, np.flatnonzero(ignored).tolist())

    def _first_observation(self, seeds: Sequence[int], into: ObservationView) -> None:
        observation, info = self._env.reset(seed=self._reset_seed(self._env, seeds))
        self._add_metrics(info)
        self._checks.write_batch(observation, into, self._clock)
        into.reset.fill(True)
        self._masked = np.zeros(self.num_rows, bool)
        self._any_masked = False
        self._return.fill(0)
        self._length.fill(0)
        if self._life_key is not None:
            np.copyto(self._lives, info[self._life_key])
        self._write_mask(observation, info, into, self._every_row)
        if into.action_mask is not None:
            self._checks.masks(into.action_mask, self._clock)

    def _seeds_of_build(self) -> list[int]:
        return [seed_of_rebuild(seed, self._rebuilds) for seed in self._seeds] if self._rebuilds else self._seeds

    def _construct(self) -> Any:
        env = self._make_vector(self._seeds_of_build())
        found = getattr(env, "num_envs", self.num_rows)
        if found != self.num_rows:
            env.close()
            raise UnsupportedSpace(
                f"{self._name} was called with num_envs={self.num_rows} and returned a vector environment of "
                f"{found}: return one of num_envs rows; the number is the run's envs_per_group"
            )
        return env

    def _rebuild(self, where: str, error: BaseException, into: ObservationView) -> None:
        def start(env: Any) -> None:
            self._env = env
            try:
                self._first_observation(self._seeds_of_build(), into)
            except failures():
                self._env = None  # the builder closes it
                self._rebuilds += 1
                raise

        env, self._env = self._env, None
        self._rebuilds += 1
        self._builder.rebuild(env, 0, where, self._clock, error, start)


def _given_mode(env: Any) -> Any:
    return getattr(env, "metadata", {}).get("autoreset_mode")


def _autoreset_mode(env: Any) -> str:
    mode = _given_mode(env)
    if mode is None:  # Gymnasium 1.0's vectors without the entry use its default, NEXT_STEP.
        return "next_step"
    given = str(getattr(mode, "name", mode))
    for known, own in _MODES.items():
        if given in (known, own, own.upper()):
            return own
    raise UnsupportedSpace(
        f"metadata['autoreset_mode'] is {mode!r}: give one of gymnasium.vector.AutoresetMode, which are "
        f"{', '.join(own.upper() for own in _MODES.values())}"
    )


def _row_of(batch: Any, row: int) -> Any:
    """One row of a batched observation: an array, or a dict or tuple of arrays (entries such as ``_key`` are masks)."""
    if isinstance(batch, dict):
        return {key: _row_of(value, row) for key, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_row_of(value, row) for value in batch)
    return batch[row]


def _write_failed(outcome: OutcomeView) -> None:
    RowInfo.clear(outcome)
    outcome.reward.fill(0)
    outcome.terminated.fill(False)
    outcome.truncated.fill(False)
    outcome.valid.fill(False)
    outcome.episode_return.fill(np.nan)
    outcome.episode_length.fill(0)

"""Evaluation: an exact number of complete episodes of one version of a policy, in separate environments."""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from rollmill.envs.config import EnvConfig
from rollmill.envs.factory import make_group, rows_of_group
from rollmill.envs.space_data import SavedSpaces, decode_spaces
from rollmill.envs.views import AgentRows
from rollmill.evaluation.agent import Agent
from rollmill.evaluation.episode_length import check_length
from rollmill.evaluation.evaluation_result import EvaluationResult
from rollmill.evaluation.lineup import Lineup, has_roles, lineup_of_agent, lineup_of_run
from rollmill.evaluation.rows import Absences, play, warn_of_failures
from rollmill.evaluation.snapshot import Snapshot, folder_of_policy, read_snapshot, require_trusted
from rollmill.evaluation.stage import NotRenderableError
from rollmill.evaluation.stats import Estimate, mean_interval
from rollmill.evaluation.tasks import shown_as_task, spec_of, task_index
from rollmill.evaluation.video import check_video_path, film_episode
from rollmill.models.device import one_thread
from rollmill.runtime.seeds import int_seed
from rollmill.settings.value_checks import check_integer
from rollmill.specs import EnvSpec

_NUM_ENVS = 8
# Each player of a Doom match is a process of its own, of about 60 MiB.
_MOST_ENGINES_AT_ONCE = 16


class EvaluationInterruptedError(RuntimeError):
    """An evaluation was stopped before it was complete."""


class NothingPlayedError(ValueError):
    """Agents that may join in late, or not at all, did not, so that there are no returns."""


class InfiniteReturnError(ValueError):
    """An episode's return is not finite, so that the episodes have no mean."""


def evaluate(
    run_dir: Path | str,
    *,
    episodes: int = 100,
    seed: int = 0,
    deterministic: bool | None = None,
    video: Path | str | None = None,
    num_envs: int | None = None,
    checkpoint: str | Path = "latest",
    device: str = "cpu",
    max_episode_steps: int | None = None,
    is_stop_wanted: Callable[[], bool] = lambda: False,
    trust: bool = False,
    policy: str | None = None,
    task: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> EvaluationResult:
    """Evaluate a run's policy, or all of its policies together.

    Args:
        run_dir: Directory of a run, finished or not.
        episodes: Number of complete episodes; with several agents, of each. An agent that does not act in one of them
            adds no return.
        seed: Keys the environments and the sampling of actions; distinct from every seed used in training.
        deterministic: As in ``Agent.act``.
        video: Also record one more episode in this mp4 file.
        num_envs: Number of parallel environments; for a user's vector environment, the run's group size. None is 8,
            of Doom's matches at most as many as 16 engines play.
        checkpoint: ``"latest"``, ``"best"``, or the path of a checkpoint file.
        device: Device of the network.
        max_episode_steps: Time limit in agent steps, instead of the run's.
        is_stop_wanted: Called at every step; True interrupts the evaluation.
        trust: Whether to execute code that the directory names even if this user's runs did not write it.
        policy: In a run with several policies, the one that plays all agents. None lets each policy play the agents
            that it plays in training; guests with agents of their own play those.
        task: In a run that learns several tasks, the only one to play, by its name; None plays ``episodes`` of each.
        progress: Called at every step with the number of episodes that have been played, of every agent and of this
            task, and of how many there are.

    Raises:
        UnknownTaskError: The run has no such task.
        UntrustedError: The directory names such code, without ``trust``.
        EvaluationInterruptedError: ``is_stop_wanted`` returned True.
        NothingPlayedError: No agent has played.
        InfiniteReturnError: A return is not finite.
        EndlessEpisodeError: An episode without a time limit did not end.
        NoRunError: There is no such run or checkpoint.
        CheckpointError: No checkpoint is intact.
        ValueError: ``episodes`` or ``num_envs`` is below 1.
        VideoError: The video cannot be written.
    """
    how = _How(
        episodes=episodes,
        seed=seed,
        deterministic=deterministic,
        video=video,
        num_envs=num_envs,
        device=device,
        max_episode_steps=max_episode_steps,
        is_stop_wanted=is_stop_wanted,
        task=task,
        progress=progress,
    )
    with one_thread():
        if policy is None and has_roles(run_dir):
            lineup = lineup_of_run(
                run_dir, checkpoint=checkpoint, device=device, seed=seed, deterministic=deterministic, trust=trust
            )
            return _evaluate(lineup.snapshot, how, lineup)
        folder = folder_of_policy(run_dir, policy)
        snapshot = read_snapshot(folder, checkpoint)
        require_trusted(folder, snapshot, trust=trust)
        return _evaluate(snapshot, how)


def evaluate_snapshot(
    snapshot: Snapshot,
    *,
    episodes: int,
    seed: int = 0,
    num_envs: int | None = None,
    deterministic: bool | None = None,
    device: str = "cpu",
    video: Path | str | None = None,
    is_stop_wanted: Callable[[], bool] = lambda: False,
    lineup: Lineup | None = None,
    of_player: str | None = None,
) -> EvaluationResult:
    """Evaluate one version of a policy; see `evaluate`.

    Args:
        snapshot: The policy, and the environment.
        episodes: As in `evaluate`.
        seed: As in `evaluate`.
        num_envs: As in `evaluate`.
        deterministic: As in `evaluate`; a lineup decides for itself.
        device: As in `evaluate`, likewise.
        video: As in `evaluate`.
        is_stop_wanted: As in `evaluate`.
        lineup: Who plays; None lets the policy play all agents.
        of_player: The only player of the lineup whose episodes count, by its name; None for all.
    """
    how = _How(
        episodes=episodes,
        seed=seed,
        num_envs=num_envs,
        deterministic=deterministic,
        device=device,
        video=video,
        is_stop_wanted=is_stop_wanted,
        of_player=of_player,
    )
    return _evaluate(snapshot, how, lineup)


class _How(NamedTuple):
    """How to evaluate: arguments of `evaluate`, and the only player whose episodes count; None for all."""

    episodes: int
    seed: int
    num_envs: int | None
    is_stop_wanted: Callable[[], bool]
    deterministic: bool | None = None
    video: Path | str | None = None
    device: str = "cpu"
    max_episode_steps: int | None = None
    task: str | None = None
    progress: Callable[[int, int], None] = lambda done, total: None
    of_player: str | None = None


def _evaluate(snapshot: Snapshot, how: _How, lineup: Lineup | None = None) -> EvaluationResult:
    """Evaluate a lineup; None is the network of the snapshot alone."""
    if how.video is not None:
        check_video_path(how.video)
    # Raises for invalid numbers before environments are built.
    quotas(how.episodes, _NUM_ENVS if how.num_envs is None else how.num_envs)
    task = 0 if how.task is None else task_index(snapshot.env, how.task)
    env = snapshot.env
    if how.max_episode_steps is not None:
        env = replace(env, max_episode_steps=how.max_episode_steps)
    spec = spec_of([snapshot] if lineup is None else lineup.snapshots, env)
    num_envs = how.num_envs or side_by_side(env.name, len(spec.agents), _NUM_ENVS)
    episodes = how.episodes
    if lineup is not None:
        # Every policy needs an environment to play in, and an episode if it is the one that counts.
        most = max(map(len, lineup.seats), default=1)
        least = 1 if how.of_player is None else most
        num_envs, episodes = max(num_envs, most), max(episodes, least)
    how = how._replace(num_envs=num_envs, episodes=episodes)
    if how.task is not None or not env.tasks:
        return _evaluate_task(snapshot, how, lineup, env, spec, task)
    # One video is enough, of the first task.
    results = [
        _evaluate_task(snapshot, how if not task else how._replace(video=None), lineup, env, spec, task)
        for task in range(len(env.tasks))
    ]
    return _of_all_tasks(snapshot, results)


def _of_all_tasks(snapshot: Snapshot, results: Sequence[EvaluationResult]) -> EvaluationResult:
    """Return the results of all tasks as one, with the interval of independent means: tasks are not a sample.

    Each task counts alike, also where a player has played fewer episodes of one than of another.
    """
    mean, low, high = _mean_of([(result.mean, *result.interval) for result in results])
    return replace(
        results[0],
        env=snapshot.env.name,
        returns=tuple(value for result in results for value in result.returns),
        lengths=tuple(length for result in results for length in result.lengths),
        mean=mean,
        interval=(low, high),
        frames=sum(result.frames for result in results),
        seconds=sum(result.seconds for result in results),
        policies=_over_tasks([result.policies for result in results]),
        tasks={result.env: (result.mean, *result.interval) for result in results},
        metrics={f"{result.env}/{name}": value for result in results for name, value in result.metrics.items()},
    )


def _over_tasks(
    policies: Sequence[Mapping[str, tuple[float, float, float]]],
) -> dict[str, tuple[float, float, float]]:
    """The mean of each policy's means over all tasks, with its interval; without policies that missed a task."""
    found = {}
    for name in policies[0]:
        estimates = [of_task[name] for of_task in policies if name in of_task]
        if len(estimates) == len(policies):
            found[name] = _mean_of(estimates)
    return found


def _mean_of(estimates: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    """The mean of independent means, with its interval."""
    mean = sum(value for value, _, _ in estimates) / len(estimates)
    below = math.hypot(*(value - low for value, low, _ in estimates)) / len(estimates)
    above = math.hypot(*(high - value for value, _, high in estimates)) / len(estimates)
    return mean, mean - below, mean + above


def _evaluate_task(
    snapshot: Snapshot, how: _How, lineup: Lineup | None, env: EnvConfig, spec: EnvSpec, task: int
) -> EvaluationResult:
    """Evaluate on one of the tasks, or on the only environment."""
    assert how.num_envs is not None
    episodes, seed = how.episodes, how.seed
    quota, of_task = quotas(episodes, how.num_envs), env.of_task(task)
    num_rows = rows_of_group(of_task, len(quota), snapshot.group_size)
    if num_rows != len(quota):
        quota = quotas(episodes, num_rows)
        quota += (0,) * (num_rows - len(quota))
    seeds = [int_seed(seed, "evaluation environment", index) for index in range(len(quota))]
    group = make_group(of_task, len(quota), seeds, box=snapshot.box_actions, agents=spec.agents)
    group = shown_as_task(group, spec, task)
    # Every agent of an environment is a row, and plays as many episodes as the environment.
    due: list[int] = np.repeat(quota, spec.rows_per_env).tolist()
    episodes *= spec.rows_per_env
    try:
        if lineup is None:
            spaces = SavedSpaces(group.observation_space, group.action_space)
            if spec.tasks:
                spaces = decode_spaces(spec.spaces)
            agent = Agent(snapshot, spaces.observation, spaces.action, device=how.device, seed=seed)
            lineup = lineup_of_agent(agent, deterministic=how.deterministic)
        who = lineup.who(group.num_rows)
        returns: list[list[float]] = [[] for _ in due]
        lengths: list[list[int]] = [[] for _ in due]
        # For each return, the number of the environment's episode.
        planned, played_in = tuple(due), [list[int]() for _ in due]
        missing = episodes
        going_on, failed = np.zeros(len(due), np.int64), 0
        # Environments step on when their episodes have been played; what they give then does not count.
        counts = [how.of_player in (None, lineup.players[index].name) for index in who.tolist()]
        group.metrics.counted = counted = (np.array(due) > 0) & counts
        started = time.perf_counter()
        steps = play(lineup.players, who, group, spec)
        absences = Absences(cast("AgentRows", group), len(spec.agents)) if spec.agents else None
        while missing:
            if how.is_stop_wanted():
                raise EvaluationInterruptedError(f"{missing} of {episodes} episodes were not played")
            outcome = next(steps)
            going_on += 1
            going_on[outcome.episode_length > 0] = 0
            if len(group.failures) > failed:
                failed = len(group.failures)
                going_on[:] = 0  # The episodes of a rebuilt environment begin again.
            if env.max_episode_steps is None:
                check_length(of_task.name, int(going_on.max()), played=episodes - missing, episodes=episodes)
            for row in np.flatnonzero(outcome.episode_length):
                if len(returns[row]) < due[row]:
                    # An episode that an agent was absent from is no longer due.
                    played_in[row].append(len(returns[row]) + planned[row] - due[row])
                    returns[row].append(float(outcome.episode_return[row]))
                    lengths[row].append(int(outcome.episode_length[row]))
                    counted[row] = counts[row] and len(returns[row]) < due[row]
                    missing -= 1
            for absent in absences.rows(outcome.episode_length > 0) if absences is not None else ():
                going_on[absent] = 0
                if len(returns[absent]) < due[absent]:
                    due[absent] -= 1
                    counted[absent] = counts[absent] and len(returns[absent]) < due[absent]
                    missing -= 1
            how.progress(episodes - missing, episodes)
        seconds = time.perf_counter() - started
        warn_of_failures(group)
    finally:
        group.close()
    flat = tuple(value for row in itertools.compress(returns, counts) for value in row)
    if not flat:
        who_was_absent = "the agents" if how.of_player is None else f"policy {how.of_player!r}"
        raise NothingPlayedError(
            f"{who_was_absent} played in none of {how.episodes} episode(s) of {of_task.name}, because no agent joined "
            "in: evaluate more episodes"
        )
    if infinite := sum(not math.isfinite(value) for value in flat):
        raise InfiniteReturnError(
            f"{infinite} of {len(flat)} episode(s) of {of_task.name} had a return that is not finite, so that they "
            "have no mean: give finite rewards (env.check_finite=true finds the first that is not)"
        )
    film = None
    if how.video is not None:
        try:
            film = film_episode(
                lineup, env, how.video, seeds[0], task=task, spec=spec, is_stop_wanted=how.is_stop_wanted
            )
        except Exception as error:
            # Keep the results if rendering fails.
            name = "" if isinstance(error, NotRenderableError) else f"{type(error).__name__}: "
            warnings.warn(f"no video was written: {name}{error}", stacklevel=2)
    playing = {lineup.players[index].name for index in who.tolist()}
    if idle := sorted({player.name for player in lineup.players} - playing):
        warnings.warn(
            f"{how.episodes} episode(s) are too few for all of {len(lineup.players)} policies: {', '.join(idle)} did "
            "not play",
            stacklevel=2,
        )
    steps_played = tuple(value for row in itertools.compress(lengths, counts) for value in row)
    estimate = _estimate(returns, played_in, np.flatnonzero(counts), spec.rows_per_env, seed)
    return EvaluationResult(
        env=of_task.name,
        checkpoint=str(snapshot.checkpoint),
        agent_steps=snapshot.agent_steps,
        returns=flat,
        lengths=steps_played,
        mean=estimate.value,
        interval=(estimate.low, estimate.high),
        frames=sum(steps_played) * (spec.tasks[task] if spec.tasks else spec).frameskip,
        seconds=seconds,
        deterministic=lineup.agents[0].is_deterministic(how.deterministic),
        seed=seed,
        video=None if film is None else str(film.path),
        policies=_of_players(lineup, who, returns, played_in, spec.rows_per_env, seed),
        metrics={name: total / count for name, (total, count) in group.metrics.take().sums.items()},
    )


def _of_players(
    lineup: Lineup,
    who: NDArray[np.int64],
    returns: Sequence[Sequence[float]],
    played_in: Sequence[Sequence[int]],
    agents: int,
    seed: int,
) -> dict[str, tuple[float, float, float]]:
    """Return the mean return of each player of several, with its interval; arguments as in :func:`_estimate`."""
    if len(lineup.players) == 1:
        return {}
    found = {}
    for index, player in enumerate(lineup.players):
        rows = np.flatnonzero(who == index)
        if any(returns[row] for row in rows.tolist()):
            estimate = _estimate(returns, played_in, rows, agents, seed)
            found[player.name] = (estimate.value, estimate.low, estimate.high)
    return found


def _estimate(
    returns: Sequence[Sequence[float]],
    played_in: Sequence[Sequence[int]],
    rows: NDArray[np.int64],
    agents: int,
    seed: int,
) -> Estimate:
    """Return the mean of the returns of some rows; its interval is that of their means in episodes of environments.

    Agents of one episode may share a reward, or win what another one loses, so their returns are not independent.

    Args:
        returns: Returns of each row.
        played_in: For each return, the number of the episode among those of the row's environment.
        rows: Which rows count.
        agents: Rows of an environment.
        seed: Keys the resampling.
    """
    of_episodes: dict[tuple[int, int], list[float]] = {}
    for row in rows.tolist():
        for number, value in zip(played_in[row], returns[row], strict=True):
            of_episodes.setdefault((row // agents, number), []).append(value)
    estimate = mean_interval(
        [np.mean(values) for values in of_episodes.values()],
        weights=[len(values) for values in of_episodes.values()],
        seed=seed,
    )
    return estimate._replace(value=float(np.mean([value for row in rows.tolist() for value in returns[row]])))


def side_by_side(env: str, agents: int, most: int) -> int:
    """Return how many environments are played side by side unless the user gives the number.

    Args:
        env: The environment's name.
        agents: Its agents; 0 for one without names.
        most: The number where environments need little memory.
    """
    is_match = env.startswith("vizdoom/") and agents > 0
    return min(most, max(1, _MOST_ENGINES_AT_ONCE // agents)) if is_match else most


def quotas(episodes: int, num_envs: int) -> tuple[int, ...]:
    """Number of episodes of each environment, fixed in advance.

    Taking the first ``episodes`` that end in any environment would be biased towards short ones.

    Raises:
        ValueError: Either number is below 1.
    """
    given: dict[str, object] = {"episodes": episodes, "num_envs": num_envs}
    for name, number in given.items():
        check_integer(name, int(number) if isinstance(number, np.integer) else number, 1)
    used = min(episodes, num_envs)
    return tuple(episodes // used + (index < episodes % used) for index in range(used))

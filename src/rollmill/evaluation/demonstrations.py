"""Episodes as a Minari dataset: recording those of an agent, and reading any (https://minari.farama.org)."""

from __future__ import annotations

import contextlib
import copy
import os
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from rollmill.envs.agent_apis import is_multi_agent
from rollmill.envs.errors import MissingExtra
from rollmill.envs.factory import make_env
from rollmill.envs.spaces import ACTION_MASK
from rollmill.evaluation.agent import Agent, load
from rollmill.evaluation.episode_length import check_length
from rollmill.evaluation.snapshot import Snapshot, folder_of_policy, require_trusted
from rollmill.evaluation.tasks import task_index
from rollmill.extras import check_extra, install_command
from rollmill.runtime.seeds import int_seed

# Where Minari keeps datasets.
_VARIABLE = "MINARI_DATASETS_PATH"


class DemonstrationError(ValueError):
    """A dataset does not exist, or cannot be written or used."""


class Recording(NamedTuple):
    """A written dataset.

    Attributes:
        name: Its name, for ``minari.load_dataset`` and ``replay.preload``.
        folder: Where it is.
        returns: float64 ``[N]``, of the episodes.
        steps: Agent steps of all of them.
    """

    name: str
    folder: Path
    returns: np.ndarray[Any, np.dtype[np.float64]]
    steps: int


def minari() -> Any:
    """Import the package.

    Raises:
        MissingExtra: It is not installed.
    """
    try:
        import minari
    except ImportError as error:
        raise MissingExtra(
            f"datasets of episodes need the package minari ({error}): {install_command('minari')}"
        ) from error
    return minari


def read_dataset(name: str) -> Any:
    """Open a dataset on this machine.

    Args:
        name: As ``minari list local`` shows it.

    Raises:
        DemonstrationError: There is none of this name, or this version of Minari cannot read it.
        MissingExtra: Minari is not installed.
        MissingPackageError: What it needs for its files is not installed.
    """
    library = minari()
    check_extra("minari", "reading recorded episodes")
    known = sorted(_local_datasets(library))
    if name not in known:
        raise DemonstrationError(
            f"there is no dataset {name!r} on this machine; there are {', '.join(known) or 'none'} "
            f"({_folder()}). `rollmill record RUN_DIR {name}` writes one; `minari download {name}` fetches one"
        )
    try:
        return library.load_dataset(name)
    except (ValueError, ImportError, OSError) as error:
        raise DemonstrationError(f"the dataset {name!r} cannot be read: {error}") from error


def _local_datasets(library: Any) -> Collection[str]:
    """The names of the datasets on this machine.

    Raises:
        DemonstrationError: Their folder cannot be read, or created.
    """
    try:
        return tuple(library.list_local_datasets())
    except OSError as error:
        raise DemonstrationError(
            f"the folder of datasets {_folder()} cannot be used ({error.strerror or error}): name another one in the "
            f"environment variable {_VARIABLE}"
        ) from error


def _folder() -> Path:
    return Path(os.environ.get(_VARIABLE) or Path.home() / ".minari" / "datasets")


def record(
    run_dir: Path | str,
    name: str,
    *,
    episodes: int = 100,
    seed: int = 0,
    deterministic: bool | None = None,
    checkpoint: str | Path = "latest",
    device: str = "cpu",
    trust: bool = False,
    policy: str | None = None,
    task: str | None = None,
    max_episode_steps: int | None = None,
    progress: Callable[[int, float], None] = lambda done, last: None,
) -> Recording:
    """Let a run's agent play, and write its episodes as a Minari dataset.

    Args:
        run_dir: Directory of a run, finished or not, whose environment is one in Python.
        name: Of the dataset: ``NAMESPACE/NAME-vN``.
        episodes: Number of complete episodes.
        seed: Keys the episodes and the sampling of actions.
        deterministic: As in ``Agent.act``.
        checkpoint: ``"latest"``, ``"best"``, or the path of a checkpoint file.
        device: Device of the network.
        trust: Whether to execute code that the directory names even if this user's runs did not write it.
        policy: In a run with several policies, the one that plays.
        task: In a run that learns several tasks, the one to play.
        max_episode_steps: Time limit in agent steps, instead of the run's.
        progress: Called after each episode with the number of those recorded, and the return of the last.

    Raises:
        DemonstrationError: The name is taken, Minari does not accept it, or the environment has several agents.
        MissingExtra: Minari is not installed.
        MissingPackageError: h5py is not installed, with which it writes.
        NoRunError: There is no such run or checkpoint.
        UntrustedError: The directory names such code, without ``trust``.
        UnknownEnvironment: The environment exists only as a native vector environment.
        EndlessEpisodeError: An episode without a time limit did not end.
    """
    library = minari()
    from minari.dataset.minari_dataset import parse_dataset_id

    try:
        has_version = parse_dataset_id(name)[2] is not None
    except (TypeError, ValueError):  # the first without a version
        has_version = False
    if not has_version:
        raise DemonstrationError(
            f"{name!r} is no name of a new dataset: give NAMESPACE/NAME-v0, the namespace with two letters or more"
        )
    if name in _local_datasets(library):
        raise DemonstrationError(
            f"there is a dataset {name!r} already, in {_folder() / name}: choose another name, or remove it "
            f"(minari delete {name})"
        )
    if (_folder() / name).exists():
        raise DemonstrationError(f"{_folder() / name} exists and is no dataset: choose another name, or remove it")
    check_extra("minari", "writing episodes")  # Minari itself asks for h5py only at the end.
    agent = load(run_dir, checkpoint, device, seed=seed, trust=trust, policy=policy, task=task)
    snapshot = agent.snapshot
    require_trusted(folder_of_policy(run_dir, policy), snapshot, trust=trust)
    env = snapshot.env
    if env.tasks:
        if task is None:
            raise DemonstrationError(f"{run_dir} has learned {', '.join(env.tasks)}: name one of them (task=NAME)")
        env = env.of_task(task_index(env, task))
    if max_episode_steps is not None:
        env = replace(env, max_episode_steps=max_episode_steps)
    played = make_env(env)
    try:
        if is_multi_agent(played):
            raise DemonstrationError(f"{env.name} has several agents: a dataset holds the episodes of one")
        for space in (played.observation_space, played.action_space):
            _check_names(space, env.name)
        unlimited = env.name if env.max_episode_steps is None else None
        buffers = list(_play(agent, played, episodes, seed, deterministic, progress, unlimited))
        _write(library, name, buffers, played, snapshot)
    finally:
        played.close()
    returns = np.array([float(np.sum(buffer.rewards)) for buffer in buffers])
    return Recording(name, _folder() / name, returns, int(sum(len(buffer) for buffer in buffers)))


def _write(library: Any, name: str, buffers: list[Any], played: Any, snapshot: Snapshot) -> None:
    """Write the dataset, whole or not at all, and never over anything.

    It is written aside and takes its name at the end, which fails if another process has taken the name meanwhile.
    Minari ignores folders whose names begin with a dot, which a killed process may leave.
    """
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.namespace import create_namespace, list_local_namespaces

    try:
        _folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".rollmill-", dir=_folder()) as aside:
            with warnings.catch_warnings(), _datasets_in(Path(aside)):
                # About what the dataset does not name: an environment for evaluations, an author, code.
                warnings.simplefilter("ignore", UserWarning)
                library.create_dataset_from_buffers(
                    dataset_id=name,
                    buffer=buffers,
                    observation_space=played.observation_space,
                    action_space=played.action_space,
                    algorithm_name=snapshot.algorithm.algorithm,
                    description=f"{snapshot.env.name}, played by {snapshot.checkpoint.name} of a run of Rollmill.",
                    # JPEG would change the pixels that a run is to learn from.
                    jpeg_encoding=False,
                )
            (_folder() / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(aside) / name).rename(_folder() / name)
        namespace = parse_dataset_id(name)[0]
        if namespace is not None and namespace not in list_local_namespaces():
            create_namespace(namespace)
    except (OSError, ValueError) as error:
        raise DemonstrationError(f"the dataset {name!r} cannot be written to {_folder()} ({error})") from error


@contextlib.contextmanager
def _datasets_in(folder: Path) -> Iterator[None]:
    """Let Minari keep datasets in this folder."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before


def _check_names(space: Any, env: str) -> None:
    """Raise for entries that the file of a dataset cannot name."""
    for name, entry in space.items() if isinstance(space, spaces.Dict) else ():
        if "/" in name:
            raise DemonstrationError(
                f"{env} has an entry {name!r}, but datasets of Minari have no '/' in names: rename it in a wrapper"
            )
        _check_names(entry, env)
    for entry in space.spaces if isinstance(space, spaces.Tuple) else ():
        _check_names(entry, env)


def _play(
    agent: Agent,
    env: Any,
    episodes: int,
    seed: int,
    deterministic: bool | None,
    progress: Callable[[int, float], None],
    unlimited: str | None,
) -> Iterator[Any]:
    """Play the episodes; yields Minari's buffer of each.

    Args:
        agent: Who plays.
        env: The environment.
        episodes: As in :func:`record`.
        seed: As in :func:`record`.
        deterministic: As in :func:`record`.
        progress: As in :func:`record`.
        unlimited: The environment's name, for messages, if no time limit is configured.
    """
    from minari.data_collector import EpisodeBuffer

    for episode in range(episodes):
        agent.reset()
        first = int_seed(seed, "recorded episode", episode)
        observation, info = env.reset(seed=first)
        # An environment may write into the same arrays again.
        observations, actions, rewards = [copy.deepcopy(observation)], [], []
        ends: list[tuple[bool, bool]] = []
        while not ends or not any(ends[-1]):
            mask = None if isinstance(observation, dict) and ACTION_MASK in observation else info.get(ACTION_MASK)
            action = agent.act(observation, deterministic=deterministic, action_mask=mask, is_batch=False)
            observation, reward, terminated, truncated, info = env.step(action)
            observations.append(copy.deepcopy(observation))
            actions.append(copy.deepcopy(action))
            rewards.append(float(reward))
            ends.append((bool(terminated), bool(truncated)))
            if unlimited is not None and not any(ends[-1]):
                check_length(unlimited, len(ends), played=episode, episodes=episodes)
        progress(episode + 1, sum(rewards))
        yield EpisodeBuffer(
            id=episode,
            seed=first,
            observations=_columns(observations),
            actions=_columns(actions),
            rewards=rewards,
            terminations=[terminated for terminated, _ in ends],
            truncations=[truncated for _, truncated in ends],
        )


def _columns(values: list[Any]) -> Any:
    """Turn a list of dicts, or tuples, into one of lists."""
    if isinstance(values[0], Mapping):
        return {key: _columns([value[key] for value in values]) for key in values[0]}
    if isinstance(values[0], tuple):
        return tuple(_columns(list(column)) for column in zip(*values, strict=True))
    return [np.asarray(value) for value in values]

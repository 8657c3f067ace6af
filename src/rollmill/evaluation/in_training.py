"""Evaluations during training: complete episodes with the network at given agent steps.

The learner saves the network at each of these steps, and a separate process evaluates it in its own environments. The
evaluations still pending at the end of training run then.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rollmill.envs.config import EnvConfig
from rollmill.evaluation.evaluate import EvaluationInterruptedError, NothingPlayedError, evaluate_snapshot
from rollmill.evaluation.lineup import lineup_of_run
from rollmill.evaluation.roles import role_of
from rollmill.evaluation.snapshot import read_snapshot
from rollmill.evaluation.tournament import points_against
from rollmill.evaluation.video import VideoError, check_video_path
from rollmill.models.device import one_thread
from rollmill.runtime.user_frames import format_error
from rollmill.storage.checkpoint_file import load_checkpoint
from rollmill.storage.checkpoints import CheckpointStore
from rollmill.storage.evaluations import EvaluationQueue

_LOOK_S = 0.5


class Evaluations(NamedTuple):
    """How the networks of a run are evaluated.

    Attributes:
        env: The environment that it is trained on, rather than the one in its files: the user may have changed it when
            resuming, or the files may have changed since they were verified.
        episodes: Complete episodes of each network.
        opponents: Players that the network also meets ``episodes`` times: in every seat, or if it plays some agents
            alone, as all of these against an opponent as all others. Its share of the points decides then which network
            is the best.
        film_every: Film one more episode at the first of every so many evaluations; None films none. A film that fails
            is a warning.
        trust: Whether to execute code that the directories of players name even if this user's runs did not write it.
    """

    env: EnvConfig
    episodes: int
    opponents: Sequence[str] = ()
    film_every: int | None = None
    trust: bool = False


def play_pending(
    run_dir: Path,
    how: Evaluations,
    *,
    checkpoints: CheckpointStore,
    seed: int = 0,
    is_stop_wanted: Callable[[], bool] = lambda: False,
) -> None:
    """Evaluate the pending networks, record the results, and keep the best network.

    A policy that plays some agents alone is evaluated in these, with the newest networks of the other policies as the
    other agents. They wait until all policies have one. An evaluation that fails is a warning, and its network is set
    aside.

    Args:
        run_dir: Directory of a run.
        how: Episodes, opponents and films of each evaluation.
        checkpoints: The run's checkpoints; the results decide which is ``best.pt``.
        seed: Seed of environments and noise, the same for every network.
        is_stop_wanted: Called at every step; True stops, and the current network stays pending.
    """
    queue = EvaluationQueue(run_dir)
    if not (pending := queue.pending()):
        return
    role = role_of(run_dir, how.env)
    if role is not None and not role.is_ready:
        return
    for path in pending:
        is_filmed = how.film_every is not None and len(queue.records()) % how.film_every == 0
        try:
            snapshot = read_snapshot(run_dir, path)._replace(env=how.env)
            video = _writable(queue.video_path(snapshot.agent_steps)) if is_filmed else None
            with one_thread():
                result = evaluate_snapshot(
                    snapshot,
                    episodes=how.episodes,
                    seed=seed,
                    video=video,
                    is_stop_wanted=is_stop_wanted,
                    lineup=None
                    if role is None
                    else lineup_of_run(role.run_dir, seed=seed, own={role.policy: path}, trust=how.trust),
                    of_player=None if role is None else role.policy,
                ).to_dict()
                best_by, measured = float(result["mean_return"]), "mean return"
                if result["tasks"]:
                    # Returns of different tasks have different sizes; scores are missing where none are known.
                    best_by = float(result["scores"].get("mean_capped", best_by))
                    kind = "mean capped score" if "mean_capped" in result["scores"] else measured
                    measured = f"{kind} of {', '.join(result['tasks'])}"
                if how.opponents:
                    points = points_against(
                        snapshot,
                        how.opponents,
                        matches=how.episodes,
                        seed=seed,
                        is_stop_wanted=is_stop_wanted,
                        trust=how.trust,
                        seats=None if role is None else role.seats,
                    )
                    result["against"] = points
                    best_by = sum(points.values()) / len(points)
                    measured = f"points against {', '.join(points)}"
        except EvaluationInterruptedError:
            return
        except NothingPlayedError as error:
            queue.failed(path)
            warnings.warn(f"no evaluation at {snapshot.agent_steps:,} agent steps: {error}", stacklevel=2)
            continue
        except Exception as error:
            # Training does not depend on evaluations, and the next network may be played.
            is_first = queue.failed(path)
            # All may fail alike.
            told = format_error(error).rstrip() if is_first else ""
            warnings.warn(f"no evaluation of {path.name}: {told or error}", stacklevel=2)
            continue
        checkpoints.offer_best(load_checkpoint(path), int(result["agent_steps"]), best_by, measured)
        # The run's directory may be moved: the video is named in it, the network is removed.
        result["video"] = None if result["video"] is None else str(Path(result["video"]).relative_to(run_dir))
        left_out = ("checkpoint",) if how.film_every is not None else ("checkpoint", "video")
        queue.found(path, {key: value for key, value in result.items() if key not in left_out})


def _writable(video: Path) -> Path | None:
    """A path that can be written; None with a warning if it cannot, since the evaluation does not depend on a video."""
    try:
        return check_video_path(video)
    except VideoError as error:
        warnings.warn(f"no video was written: {error}", stacklevel=2)
        return None


def play_pending_of_all(
    folders: Mapping[Path, CheckpointStore], how: Evaluations, *, is_stop_wanted: Callable[[], bool] = lambda: False
) -> None:
    """Evaluate the pending networks of several policies; arguments as in :func:`evaluate_until`."""
    for folder, checkpoints in folders.items():
        play_pending(folder, how, checkpoints=checkpoints, is_stop_wanted=is_stop_wanted)


def evaluate_until(
    folders: Mapping[Path, CheckpointStore],
    how: Evaluations,
    *,
    is_stop_wanted: Callable[[], bool],
    while_waiting: Callable[[], object] = lambda: None,
) -> None:
    """Evaluate pending networks as they appear, until told to stop.

    Args:
        folders: Directory of each policy -> its checkpoints.
        how: Episodes, opponents and films of each evaluation.
        is_stop_wanted: Called at every step, and between two networks.
        while_waiting: Called several times a second while no network is pending.
    """
    while not is_stop_wanted():
        # The configuration is written when the learner has started.
        ready = {folder: checkpoints for folder, checkpoints in folders.items() if (folder / "config.json").exists()}
        play_pending_of_all(ready, how, is_stop_wanted=is_stop_wanted)
        while_waiting()
        time.sleep(_LOOK_S)

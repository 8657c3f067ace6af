"""Watching an agent play, in a window or, without a display, as videos."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from rollmill.envs.config import EnvConfig
from rollmill.evaluation.lineup import Lineup, lineup_of_run
from rollmill.evaluation.snapshot import folder_of_policy, newest_checkpoint
from rollmill.evaluation.stage import has_display
from rollmill.evaluation.tasks import spec_of, task_index
from rollmill.evaluation.video import check_video_path, film_episode, play_episode
from rollmill.evaluation.window import Window, WindowClosedError
from rollmill.models.device import one_thread
from rollmill.runtime.seeds import int_seed
from rollmill.settings.value_checks import check_integer
from rollmill.specs import EnvSpec

_POLL_S = 1.0


@one_thread()
def watch(
    run_dir: Path | str,
    *,
    episodes: int | None = None,
    video: Path | str | None = None,
    follow: bool = False,
    seed: int = 0,
    deterministic: bool | None = None,
    checkpoint: str | Path = "latest",
    device: str = "cpu",
    say: Callable[[str], None] = print,
    trust: bool = False,
    policy: str | None = None,
    task: str | None = None,
) -> list[float]:
    """Show episodes until ``episodes`` are over, the window is closed, or Ctrl-C.

    Args:
        run_dir: Directory of a run, finished or still training.
        episodes: Number of episodes; None is one without a window (unlimited with ``follow``), and unlimited in a
            window.
        video: Write a video here instead of opening a window; a later episode replaces it. Without a display, and
            without this, it is ``run_dir/watch.mp4``.
        follow: Use the newest checkpoint for each episode; without a window, record one episode of each new checkpoint.
        seed: Keys environments and actions; each episode has its own.
        deterministic: As in ``Agent.act``.
        checkpoint: The checkpoint to use without ``follow``.
        device: Device of the network.
        say: Called with one line for each episode.
        trust: Whether to execute code that the directory names even if this user's runs did not write it.
        policy: In a run with several policies, the one that plays all agents; None as in :func:`evaluate`.
        task: In a run that learns several tasks, the only one to show; None shows them in turn.

    Returns:
        The episodes' returns.

    Raises:
        ValueError: ``episodes`` is not an integer, or below 1.
        UntrustedError: The directory names such code, without ``trust``.
        NoRunError: There is no such run or checkpoint.
        UnknownTaskError: The run has no such task.
        CheckpointError: No checkpoint is intact.
        NotRenderableError: The environment cannot be rendered.
        VideoError: The video cannot be written.
    """
    folder = Path(run_dir) if policy is None else folder_of_policy(run_dir, policy)

    def load() -> Lineup:
        which = "latest" if follow and returns else checkpoint
        return lineup_of_run(
            run_dir,
            policy=policy,
            checkpoint=which,
            device=device,
            seed=seed,
            deterministic=deterministic,
            trust=trust,
        )

    windowed = video is None and has_display()
    target = Path(video) if video is not None else folder / "watch.mp4"
    if episodes is not None:
        check_integer("episodes", episodes, 1, ", or None")
    if episodes is None and not windowed and not follow:
        episodes = 1
    returns: list[float] = []
    lineup = load()
    if not windowed:
        check_video_path(target)
    env = lineup.snapshot.env
    chosen = range(len(env.names)) if task is None else (task_index(env, task),)
    spec = spec_of(lineup.snapshots, env)
    window = Window(f"rollmill: {env.name}") if windowed else None
    try:
        while episodes is None or len(returns) < episodes:
            if follow and returns:
                while not _is_newer(lineup) and window is None:
                    time.sleep(_POLL_S)
                if _is_newer(lineup):
                    lineup = load()
            env_seed = int_seed(seed, "watched environment", len(returns))
            shown = chosen[len(returns) % len(chosen)]
            cut = ""
            if window is not None:
                returns.append(_show(window, lineup, env, env_seed, shown, spec))
            else:
                film = film_episode(lineup, env, target, env_seed, task=shown, spec=spec)
                returns.append(film.episode_return)
                cut = "" if film.complete else " until the film is cut"
            where = "" if window is not None else f"   {target}"
            which = f"{env.tasks[shown]}   " if env.tasks else ""
            say(f"{which}{lineup.snapshot.agent_steps:,} agent steps   return {returns[-1]:,.1f}{cut}{where}")
    except WindowClosedError:
        pass
    finally:
        if window is not None:
            window.close()
    return returns


def _show(window: Window, lineup: Lineup, env: EnvConfig, seed: int, task: int, spec: EnvSpec) -> float:
    """Show one episode in real time."""
    due = time.monotonic()
    total = 0.0
    for frame in play_episode(lineup, env, seed, task=task, spec=spec):
        due = max(due + 1.0 / frame.fps, time.monotonic())
        window.show(frame.picture, f"step {frame.length:,}   return {frame.reward_sum:,.1f}", due)
        total = frame.reward_sum
    return total


def _is_newer(lineup: Lineup) -> bool:
    """Whether a network of the lineup has a newer checkpoint."""
    found = (agent.snapshot.checkpoint for agent in lineup.agents)
    return any(newest_checkpoint(file.parent.parent) not in (None, file) for file in found)

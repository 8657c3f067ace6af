"""Watching an agent play, in a window or, without a display, as videos."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from rollmill.evaluation.agent import Agent, load
from rollmill.evaluation.snapshot import folder_of_policy, newest_checkpoint, require_trusted
from rollmill.evaluation.stage import has_display
from rollmill.evaluation.video import check_video_path, film_episode, play_episode
from rollmill.evaluation.window import Window, WindowClosedError
from rollmill.models.device import one_thread
from rollmill.runtime.seeds import int_seed
from rollmill.settings.value_checks import check_integer

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
        policy: Name of the policy, in a run with several.

    Returns:
        The episodes' returns.

    Raises:
        ValueError: ``episodes`` is not an integer, or below 1.
        UntrustedError: The directory names such code, without ``trust``.
        NoRunError: There is no such run or checkpoint.
        CheckpointError: No checkpoint is intact.
        NotRenderableError: The environment cannot be rendered.
        VideoError: The video cannot be written.
    """
    folder = folder_of_policy(run_dir, policy)
    windowed = video is None and has_display()
    target = Path(video) if video is not None else folder / "watch.mp4"
    if not windowed:
        check_video_path(target)
    if episodes is not None:
        check_integer("episodes", episodes, 1, ", or None")
    if episodes is None and not windowed and not follow:
        episodes = 1
    agent = _load(folder, checkpoint, device, seed, trust=trust)
    window = Window(f"rollmill: {agent.snapshot.env.name}") if windowed else None
    returns: list[float] = []
    try:
        while episodes is None or len(returns) < episodes:
            if follow and returns:
                agent = _newer(agent, folder, device, seed, wait=window is None, trust=trust)
            env_seed = int_seed(seed, "watched environment", len(returns))
            if window is not None:
                returns.append(_show(window, agent, env_seed, deterministic))
            else:
                film = film_episode(agent, agent.snapshot.env, target, env_seed, deterministic=deterministic)
                returns.append(film.episode_return)
            where = "" if window is not None else f"   {target}"
            say(f"{agent.snapshot.agent_steps:,} agent steps   return {returns[-1]:,.1f}{where}")
    except WindowClosedError:
        pass
    finally:
        if window is not None:
            window.close()
    return returns


def _show(window: Window, agent: Agent, seed: int, deterministic: bool | None) -> float:
    """Show one episode in real time."""
    due = time.monotonic()
    total = 0.0
    for frame in play_episode(agent, agent.snapshot.env, seed, deterministic=deterministic):
        due = max(due + 1.0 / frame.fps, time.monotonic())
        window.show(frame.picture, f"step {frame.length:,}   return {frame.reward_sum:,.1f}", due)
        total = frame.reward_sum
    return total


def _load(run_dir: Path, checkpoint: str | Path, device: str, seed: int, *, trust: bool) -> Agent:
    """Load an agent whose environment may be executed."""
    agent = load(run_dir, checkpoint, device, seed=seed, trust=trust)
    require_trusted(run_dir, agent.snapshot, trust=trust)
    return agent


def _newer(agent: Agent, run_dir: Path, device: str, seed: int, *, wait: bool, trust: bool) -> Agent:
    """Return the agent of a newer checkpoint, if there is one; ``wait`` waits for one."""
    while newest_checkpoint(run_dir) in (None, agent.snapshot.checkpoint):
        if not wait:
            return agent
        time.sleep(_POLL_S)
    return _load(run_dir, "latest", device, seed, trust=trust)

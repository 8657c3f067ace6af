"""The longest episode that is played without a time limit."""

from __future__ import annotations

import warnings

# Seven times the longest episode of Atari.
_TAKEN_FOR_ENDLESS = 200_000
_WARNED_OF_LENGTH = 20_000


class EndlessEpisodeError(RuntimeError):
    """An episode without a time limit did not end."""


def check_length(env: str, steps: int, *, played: int, episodes: int) -> None:
    """Warn about a long episode without a time limit, and raise for an endless one. Call at every step.

    Args:
        env: The environment's name.
        steps: Agent steps of the longest episode that goes on.
        played: Episodes that have ended.
        episodes: Episodes that are wanted.

    Raises:
        EndlessEpisodeError: The episode has reached 200,000 steps.
    """
    if steps not in (_WARNED_OF_LENGTH, _TAKEN_FOR_ENDLESS):
        return
    endless = (
        f"an episode of {env!r} has not ended after {steps:,} steps, with {played} of {episodes} episodes played: give "
        "a time limit (--max-episode-steps, max_episode_steps), or train with --env.max-episode-steps"
    )
    if steps == _TAKEN_FOR_ENDLESS:
        raise EndlessEpisodeError(endless)
    warnings.warn(f"{endless}; at {_TAKEN_FOR_ENDLESS:,} steps this ends", stacklevel=3)

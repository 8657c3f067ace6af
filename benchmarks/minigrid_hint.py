"""MiniGrid's memory task as its documentation describes it: the agent starts next to the hint.

``MiniGrid-MemoryS7-v0`` lets the agent begin anywhere in the corridor and see 7 x 7 cells. From the fork it can then
look back at the hint and at both objects at once, so that no memory is needed (docs/journal), and with a narrower
view three quarters of the episodes begin with looking for the hint, which is a question of exploration. Here the agent
begins in the room with the hint and sees 3 x 3 cells: without memory it has to guess at the fork.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from minigrid.envs import MemoryEnv

from rollmill.envs.minigrid import Numbers

_VIEW = 3
_LEFT_RIGHT_FORWARD = 3


class BesideTheHint(gymnasium.Wrapper[Any, Any, Any, Any]):
    """uint8 ``[3, 3, 3]`` of cells, and the three actions that move."""

    def __init__(self, size: int = 7) -> None:
        """Builds the environment.

        Args:
            size: Cells of its width and height; odd, at least 7.
        """
        super().__init__(Numbers(MemoryEnv(size=size, agent_view_size=_VIEW), direction=False))
        self.action_space = gymnasium.spaces.Discrete(_LEFT_RIGHT_FORWARD)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Puts the agent into the room's corner of the corridor, where it looks along the corridor."""
        _, info = self.env.reset(**kwargs)
        grid = self.env.unwrapped
        assert isinstance(grid, MemoryEnv)
        grid.agent_pos = np.array((1, grid.height // 2))
        return self.env.observation(grid.gen_obs()), info

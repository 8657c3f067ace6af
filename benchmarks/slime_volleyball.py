"""Slime volleyball by self-play alone, then against its built-in player, which training never meets.

    python benchmarks/slime_volleyball.py --minutes 10 --json [--KEY VALUE ...]

Needs ``pip install gym`` and ``pip install --no-deps slimevolleygym`` (Ha 2020,
https://github.com/hardmaru/slimevolleygym), written for an older NumPy. A game lasts five lives or 3,000 steps; its
score is lives won minus lives lost. A random player scores -4.9 against the built-in one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

import rollmill
from rollmill.settings.options import parse_overrides

SIDES = ("right", "left")
# Random actions that are held for one frame only tend to cancel each other.
REPEAT = 3

SETTINGS: dict[str, object] = {
    "total_steps": 100_000_000,
    "num_envs": 64,
    "rollout_length": 64,
    "learner.batch_size": 8192,
    "learner.epochs": 4,
    "learner.minibatches": 8,
    "learner.learning_rate": 5e-4,
    "learner.schedule": "linear",
    "learner.entropy_coef": 0.01,
    "learner.entropy_schedule": "linear",
    "learner.discount": 0.99,
    "model.mlp_sizes": (128, 128),
    "population.snapshots": 16,
    "population.snapshot_every": 200_000,
    "population.keep": "spread",
    "population.past": 0.3,
}


def make_game() -> Any:
    """Build the original environment."""
    np.bool8 = np.bool_  # type: ignore[attr-defined]  # what gym 0.26 still calls it
    from slimevolleygym.slimevolley import SlimeVolleyEnv

    game = SlimeVolleyEnv()
    # Six combinations of forward, backward and jump, instead of three switches.
    game.atari_mode = True
    return game


class SlimeVolleyball(ParallelEnv):
    """Both players of the game, each of which sees the field as if it played on the right.

    Args:
        repeat: Frames for which an action is held.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "slime_volleyball", "render_modes": []}

    def __init__(self, repeat: int = REPEAT) -> None:
        self.possible_agents = list(SIDES)
        self.agents: list[str] = []
        self._game = make_game()
        self._repeat = repeat

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return the space of positions and speeds."""
        return spaces.Box(-np.inf, np.inf, (12,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return the space of combinations of keys."""
        return spaces.Discrete(6)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Start a game."""
        if seed is not None:
            self._game.seed(seed)
        self.agents = list(SIDES)
        right = self._game.reset()
        return self._observed(right, self._game.game.agent_left.getObservation()), {side: {} for side in SIDES}

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Let both players move."""
        reward = 0.0
        for _ in range(self._repeat):
            right, won, done, info = self._game.step(int(actions["right"]), int(actions["left"]))
            reward += won
            if done:
                break
        # Out of time is a draw that both see coming.
        ended = dict.fromkeys(SIDES, bool(done))
        self.agents = [] if done else list(SIDES)
        rewards = {"right": float(reward), "left": -float(reward)}
        return (
            self._observed(right, info["otherObs"]),
            rewards,
            ended,
            dict.fromkeys(SIDES, False),
            {s: {} for s in SIDES},
        )

    @staticmethod
    def _observed(right: Any, left: Any) -> dict[str, Any]:
        return {"right": np.asarray(right, np.float32), "left": np.asarray(left, np.float32)}


def score_against_built_in(agent: Any, games: int, repeat: int, *, deterministic: bool) -> list[float]:
    """Return the scores of an agent, on the right, against the built-in player."""
    scores = []
    game = make_game()
    for number in range(games):
        game.seed(number)
        agent.reset()
        observed, done, score = game.reset(), False, 0.0
        while not done:
            action = agent.act(np.asarray(observed, np.float32), deterministic=deterministic)
            for _ in range(repeat):
                observed, reward, done, _ = game.step(int(action))
                score += reward
                if done:
                    break
        scores.append(score)
    return scores


def main() -> int:
    """Train, and play against the built-in player."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--games", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=REPEAT, help="frames for which an action is held")
    parser.add_argument("--json", action="store_true")
    arguments, rest = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="rollmill-slime-") as folder:
        settings = {
            **SETTINGS,
            "env.kwargs.repeat": arguments.repeat,
            "max_seconds": 60 * arguments.minutes,
            **parse_overrides(rest),
        }
        run = rollmill.train(SlimeVolleyball, run_dir=Path(folder) / "run", quiet=arguments.json, **settings)
        agent = rollmill.load(run.dir)
        result: dict[str, Any] = {
            "minutes": arguments.minutes,
            "agent_steps": run.agent_steps,
            "games": arguments.games,
        }
        for name, deterministic in (("sampled", False), ("deterministic", True)):
            scores = score_against_built_in(agent, arguments.games, arguments.repeat, deterministic=deterministic)
            half = 1.96 * float(np.std(scores)) / len(scores) ** 0.5
            result[name] = {
                "mean": float(np.mean(scores)),
                "interval_95": half,
                "won": int((np.array(scores) > 0).sum()),
            }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())

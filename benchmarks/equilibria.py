"""How near self-play comes to a Nash equilibrium, in games whose equilibria are known.

    python benchmarks/equilibria.py kuhn_poker --total-steps 2e6 --json [--KEY VALUE ...]

Needs open_spiel (``pip install open_spiel``), which has the games and computes NashConv: by how much both players
together could gain by playing their best responses. One policy plays both seats; it observes what open_spiel calls an
information state. For ``matrix_rps`` (rock, paper, scissors, of which the second player does not see the first one's
choice) the shares of the three moves are told, too.

The **average** policy is that of all snapshots from ``--burn-in`` (a share of the run) on, each weighted at an
information state by the probability that its player comes there (as in fictitious play, Heinrich et al. 2015).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyspiel
from gymnasium import spaces
from open_spiel.python import policy as spiel_policy
from open_spiel.python.algorithms import exploitability
from pettingzoo import AECEnv

import rollmill
from rollmill.settings.options import parse_overrides

# As in the presets of games: large batches and few SGD steps for each, so that policies move slowly beside what they
# meet, and rewards as the rules have them.
SETTINGS: dict[str, object] = {
    "num_envs": 128,
    "rollout_length": 32,
    "learner.batch_size": 8192,
    "learner.epochs": 2,
    "learner.minibatches": 8,
    "learner.clip_range": 0.2,
    "learner.learning_rate": 1e-3,
    "learner.entropy_coef": 0.05,
    # A discount would pay less for games that last longer, and move the equilibrium.
    "learner.discount": 1.0,
    "model.normalise_returns": False,
}


def load_game(name: str) -> Any:
    """Load a game of open_spiel; simultaneous moves become turns."""
    if name == "matrix_rps":
        return pyspiel.convert_to_turn_based(pyspiel.load_game("matrix_rps"))
    return pyspiel.load_game(name)


class SpielGame(AECEnv):
    """A game of open_spiel with PettingZoo's interface.

    Args:
        game: Its name.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "open_spiel"}

    def __init__(self, game: str) -> None:
        super().__init__()
        self.game = load_game(game)
        self.possible_agents = [f"player_{player}" for player in range(self.game.num_players())]
        self._random = np.random.default_rng()

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return the space of an information state and the mask of moves."""
        shape, moves = self.game.information_state_tensor_shape(), self.game.num_distinct_actions()
        return spaces.Dict(
            {"observation": spaces.Box(-1e3, 1e3, tuple(shape), np.float32), "action_mask": spaces.MultiBinary(moves)}
        )

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return the space of moves."""
        return spaces.Discrete(self.game.num_distinct_actions())

    def observe(self, agent: str) -> Any:
        """Return what the agent knows."""
        player = self.possible_agents.index(agent)
        return {
            "observation": np.array(self.state.information_state_tensor(player), np.float32),
            "action_mask": np.array(self.state.legal_actions_mask(player), np.int8),
        }

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        """Start the next game."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, Any] = {agent: {} for agent in self.agents}
        self.state = self.game.new_initial_state()
        self._go_on()

    def step(self, action: int | None) -> None:
        """Make a move."""
        if self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[self.agent_selection] = 0.0
        self.state.apply_action(int(action or 0))
        self._go_on()
        self._accumulate_rewards()

    def _go_on(self) -> None:
        """Let chance play until a player is to move or the game is over."""
        while self.state.is_chance_node():
            moves, chances = zip(*self.state.chance_outcomes(), strict=True)
            self.state.apply_action(int(self._random.choice(moves, p=np.array(chances) / sum(chances))))
        if self.state.is_terminal():
            self.rewards = dict(zip(self.possible_agents, self.state.returns(), strict=True))
            self.terminations = dict.fromkeys(self.possible_agents, True)
            self.agent_selection = self.possible_agents[0]
        else:
            self.agent_selection = self.possible_agents[self.state.current_player()]


class Tabular:
    """A policy at every information state.

    Args:
        game: The game.

    Attributes:
        weights: Information state -> move -> weight; they need not sum to 1.
    """

    def __init__(self, game: Any) -> None:
        self.game = game
        self.weights: dict[str, dict[int, float]] = {}

    def add(self, table: dict[str, dict[int, float]]) -> None:
        """Add a policy, weighted by the probabilities with which its players come to each information state."""
        seen: set[tuple[str, ...]] = set()

        def visit(state: Any, own: tuple[float, ...]) -> None:
            if state.is_terminal():
                return
            if state.is_chance_node():
                for move, _ in state.chance_outcomes():
                    visit(state.child(move), own)
                return
            player, key = state.current_player(), state.information_state_string()
            if (key,) not in seen:
                seen.add((key,))
                known = self.weights.setdefault(key, dict.fromkeys(table[key], 0.0))
                for move, probability in table[key].items():
                    known[move] += own[player] * probability
            for move, probability in table[key].items():
                visit(state.child(move), (*own[:player], own[player] * probability, *own[player + 1 :]))

        visit(self.game.new_initial_state(), (1.0,) * self.game.num_players())

    def nash_conv(self) -> float:
        """Return NashConv of the normalised policy."""
        shares = {key: _normalised(moves) for key, moves in self.weights.items()}
        found = spiel_policy.tabular_policy_from_callable(
            self.game, lambda state: shares[state.information_state_string()]
        )
        return float(exploitability.nash_conv(self.game, found))


def _normalised(moves: dict[int, float]) -> dict[int, float]:
    total = sum(moves.values())
    return {move: weight / total if total else 1 / len(moves) for move, weight in moves.items()}


def table_of(agent: Any, game: Any, samples: int) -> dict[str, dict[int, float]]:
    """Return the probabilities of an agent's moves at every information state, from samples of each."""
    states: dict[str, tuple[Any, Any, list[int]]] = {}

    def visit(state: Any) -> None:
        if state.is_terminal():
            return
        if not state.is_chance_node():
            tensor = np.array(state.information_state_tensor(), np.float32)
            mask = np.array(state.legal_actions_mask(), np.int8)
            states.setdefault(state.information_state_string(), (tensor, mask, state.legal_actions()))
        for move in state.legal_actions():
            visit(state.child(move))

    visit(game.new_initial_state())
    found = {}
    for key, (tensor, mask, legal) in states.items():
        batch = {"observation": np.repeat(tensor[None], samples, 0), "action_mask": np.repeat(mask[None], samples, 0)}
        agent.reset()
        counts = np.bincount(agent.act(batch, deterministic=False), minlength=len(mask)) / samples
        found[key] = {move: float(counts[move]) for move in legal}
    return found


def main() -> int:
    """Train, and measure every snapshot and their average."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("game", help="kuhn_poker, leduc_poker or matrix_rps")
    parser.add_argument("--total-steps", type=float, default=2e6)
    parser.add_argument("--snapshots", type=int, default=100, help="checkpoints to measure")
    parser.add_argument("--samples", type=int, default=4000, help="of each information state")
    parser.add_argument("--burn-in", type=float, default=0.25, help="share of the run that the average leaves out")
    parser.add_argument("--json", action="store_true")
    arguments, rest = parser.parse_known_args()
    game, steps = load_game(arguments.game), int(arguments.total_steps)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="rollmill-equilibria-") as folder:
        settings = {
            **SETTINGS,
            "env.kwargs.game": arguments.game,
            "checkpoint.every_steps": steps // arguments.snapshots,
            "checkpoint.every_s": None,
            "checkpoint.keep": 10 * arguments.snapshots,
            **parse_overrides(rest),
        }
        run = rollmill.train(SpielGame, run_dir=Path(folder) / "run", quiet=True, total_steps=steps, **settings)
        minutes = (time.perf_counter() - began) / 60
        average, curve = Tabular(game), []
        for path in sorted((run.dir / "checkpoints").glob("checkpoint_*.pt")):
            agent = rollmill.load(run.dir, checkpoint=str(path))
            if not agent.snapshot.agent_steps:
                continue
            table = table_of(agent, game, arguments.samples)
            single = Tabular(game)
            single.add(table)
            if agent.snapshot.agent_steps >= arguments.burn_in * steps:
                average.add(table)
            curve.append(
                {
                    "agent_steps": agent.snapshot.agent_steps,
                    "nash_conv": single.nash_conv(),
                    "average_nash_conv": average.nash_conv() if average.weights else None,
                    "first_move": [round(share, 3) for share in next(iter(table.values())).values()],
                }
            )
            if not arguments.json:
                print(curve[-1], flush=True)
    first = next(iter(average.weights.values()))
    singles = [point["nash_conv"] for point in curve if point["average_nash_conv"] is not None]
    result = {
        "game": arguments.game,
        "agent_steps": run.agent_steps,
        "minutes": minutes,
        "average_nash_conv": average.nash_conv(),
        "last_nash_conv": curve[-1]["nash_conv"],
        "average_first_move": [round(share, 3) for share in _normalised(first).values()],
        "single_nash_conv": sum(singles) / len(singles),
        "curve": curve,
    }
    print(json.dumps(result if arguments.json else {key: value for key, value in result.items() if key != "curve"}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

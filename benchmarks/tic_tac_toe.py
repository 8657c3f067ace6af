r"""Whether an agent can lose at tic-tac-toe: it meets every sequence of its opponent's moves, in both seats.

    rollmill train pettingzoo/classic/tictactoe_v3 --run-dir runs/tictactoe --total-steps 3e6 --guests random \
        --guest-share 0.3 --learner.schedule linear --learner.entropy-schedule linear
    python benchmarks/tic_tac_toe.py runs/tictactoe

The agent takes its most probable action, so that its game is determined by the opponent's moves. ``lost`` counts the
sequences after which it has lost; ``lost_to_random`` is the share of matches that it loses to a player who moves at
random, computed instead of sampled.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
from pettingzoo.classic import tictactoe_v3

import rollmill

SEATS = ("player_1", "player_2")


class Games:
    """All games of a deterministic agent in one seat.

    Args:
        agent: The agent.
        seat: The player that it is.

    Attributes:
        results: Reward of the agent -> number of sequences of the opponent's moves that lead to it.
        probabilities: The same -> probability against an opponent who moves at random.
    """

    def __init__(self, agent: Any, seat: str) -> None:
        self.results = {1: 0, 0: 0, -1: 0}
        self.probabilities = {1: 0.0, 0: 0.0, -1: 0.0}
        self._agent = agent
        self._seat = seat
        self._env = tictactoe_v3.env()
        self._play((), 1.0)

    def _play(self, moves: tuple[int, ...], probability: float) -> None:
        """Continue the game from a position, which is replayed, because the environment has no way back."""
        env = self._env
        env.reset(seed=0)
        for move in moves:
            env.step(move)
        mover = env.agent_selection
        if env.terminations[mover]:
            reward = int(env.rewards[self._seat])
            self.results[reward] += 1
            self.probabilities[reward] += probability
            return
        view = env.observe(mover)
        if mover == self._seat:
            self._agent.reset()
            self._play((*moves, int(self._agent.act(view, deterministic=True))), probability)
            return
        legal = np.flatnonzero(view["action_mask"])
        for move in legal:
            self._play((*moves, int(move)), probability / len(legal))


def main() -> None:
    """Print the results of both seats."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="run directory or checkpoint file")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    agent = rollmill.load(arguments.run)
    found = {}
    for seat in SEATS:
        games = Games(agent, seat)
        found[seat] = {
            "sequences": sum(games.results.values()),
            "won": games.results[1],
            "lost": games.results[-1],
            "lost_to_random": games.probabilities[-1],
        }
        if not arguments.json:
            print(seat, found[seat])
    if arguments.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()

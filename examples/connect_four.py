"""Train connect four by self-play, then play against the result in the terminal.

``python connect_four.py`` trains first; ``python connect_four.py RUN_DIR`` plays against the agent of a run.
"""

import random
import sys

import envpool
import numpy as np

import rollmill

SIGNS = {-1: ".", 0: "O", 1: "X"}  # you are O


def ask(allowed: np.ndarray) -> int:
    while True:
        answer = input(f"column {np.flatnonzero(allowed) + 1}: ").strip()
        if answer.isdigit() and 1 <= int(answer) <= len(allowed) and allowed[int(answer) - 1]:
            return int(answer) - 1


def play(agent) -> None:
    game = envpool.make_gymnasium("ConnectFour-v1", num_envs=1, seed=random.randrange(2**31))
    observation, info = game.reset()
    over = False
    while not over:
        player, allowed = int(info["current_player"][0]), info["legal_action_mask"][0]
        if player == 0:
            print("\n1 2 3 4 5 6 7", *(" ".join(map(SIGNS.get, row)) for row in info["board"][0].tolist()), sep="\n")
            column = ask(allowed)
        else:
            column = agent.act(observation[player], action_mask=allowed, deterministic=True)
        observation, reward, terminated, _, info = game.step(np.array([column], np.int32))
        over = bool(terminated[0])
    print("you win" if reward[0] > 0 else "you lose" if reward[0] < 0 else "a draw")


if __name__ == "__main__":
    run_dir = sys.argv[1] if len(sys.argv) > 1 else rollmill.train("envpool/ConnectFour-v1", total_steps=3_000_000).dir
    play(rollmill.load(run_dir))

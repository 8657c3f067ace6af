"""Plays with an exported agent; needs gymnasium and onnxruntime, but not Rollmill.

rollmill export RUN_DIR --output agent.onnx
python examples/act_without_rollmill.py agent.onnx CartPole-v1
python examples/act_without_rollmill.py agent.onnx my_module:Catcher-v0  # my_module.py is in the current directory
"""

import sys
from pathlib import Path

import gymnasium
import numpy as np
import onnxruntime

if len(sys.argv) != 3:
    sys.exit(f"usage: python {sys.argv[0]} AGENT.onnx ENVIRONMENT_ID\nThe id is one that Gymnasium knows.")
sys.path.insert(0, "")  # the current directory, for the module of an environment
session = onnxruntime.InferenceSession(Path(sys.argv[1]).read_bytes())
inputs = {each.name: each for each in session.get_inputs()}
state = np.zeros((1, inputs["state"].shape[1] if "state" in inputs else 0), np.float32)
env = gymnasium.make(sys.argv[2])
space = env.observation_space
spaces = space if isinstance(space, gymnasium.spaces.Dict) else {"obs": space}
dtypes = {name: entry.dtype for name, entry in spaces.items()}
for episode in range(5):
    observation, _ = env.reset(seed=episode)
    total, is_first, has_ended = 0.0, True, False
    while not has_ended:
        entries = observation if isinstance(observation, dict) else {"obs": observation}
        given = {name: np.asarray(value, dtypes[name])[None] for name, value in entries.items()}  # a batch of one
        if "state" in inputs:  # a recurrent network
            given |= {"state": state, "reset": np.array([is_first])}
        action, *rest = session.run(["action", "next_state"] if "state" in inputs else ["action"], given)
        state, is_first = rest[0] if rest else state, False
        observation, reward, terminated, truncated, _ = env.step(action[0])
        total, has_ended = total + float(reward), terminated or truncated
    print(f"episode {episode}: return {total:.1f}")

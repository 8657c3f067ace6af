"""Plays with an exported agent; needs gymnasium and onnxruntime, but not Rollmill.

For action spaces that are neither a Dict nor a Tuple.

rollmill export RUN_DIR --output agent.onnx
python examples/act_without_rollmill.py agent.onnx CartPole-v1
python examples/act_without_rollmill.py agent.onnx my_module:Catcher-v0  # my_module.py is in the current directory
"""

import functools
import json
import operator
import sys
from pathlib import Path

import gymnasium
import numpy as np
import onnxruntime

if len(sys.argv) != 3:
    sys.exit(f"usage: python {sys.argv[0]} AGENT.onnx ENVIRONMENT_ID\nThe id is one that Gymnasium knows.")
sys.path.insert(0, "")  # the current directory, for the module of an environment
session = onnxruntime.InferenceSession(Path(sys.argv[1]).read_bytes())
inputs = json.loads(session.get_modelmeta().custom_metadata_map["rollmill"])["inputs"]
outputs = [each.name for each in session.get_outputs()]
env = gymnasium.make(sys.argv[2])
rng = np.random.default_rng(0)
draws = {"uniform": rng.random, "normal": rng.standard_normal}  # for files of ``rollmill export --sample``
for episode in range(5):
    observation, info = env.reset(seed=episode)
    # The values of inputs that are not in the observation, by role. A network without a core has no state.
    others = {each["role"]: np.zeros(each["shape"], each["dtype"]) for each in inputs} | {"reset": True}
    total, has_ended = 0.0, False
    while not has_ended:
        mask = observation.get("action_mask") if isinstance(observation, dict) else None
        others["action_mask"] = np.hstack([*(info.get("action_mask", []) if mask is None else mask), []])
        others |= {each["role"]: draws[each["role"]](each["shape"], "f4") for each in inputs if each["role"] in draws}
        given = {}
        for each in inputs:
            is_seen = each["role"] == "observation"
            value = functools.reduce(operator.getitem, each["path"], observation) if is_seen else others[each["role"]]
            given[each["name"]] = np.asarray(value, each["dtype"])[None]  # a batch of one
        found = dict(zip(outputs, session.run(None, given), strict=True))
        if "next_state" in found:
            others |= {"state": found["next_state"][0], "reset": False}
        observation, reward, terminated, truncated, info = env.step(found["action"][0])
        total, has_ended = total + float(reward), terminated or truncated
    print(f"episode {episode}: return {total:.1f}")

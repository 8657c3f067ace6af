"""Agents of every kind of network, with initial weights whose actions depend on what they see."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from torch import Tensor, nn

from rollmill.algorithms.off_policy_config import DDPGConfig, DQNConfig, OffPolicyConfig, SACConfig, TD3Config
from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.algorithms.registry import make_algorithm
from rollmill.envs.config import EnvConfig
from rollmill.envs.spaces import action_spec, observation_specs
from rollmill.evaluation.agent import Agent, TaskSpaces
from rollmill.evaluation.snapshot import Snapshot
from rollmill.exporting.check import _varied
from rollmill.models.actor_critic import ActorCritic
from rollmill.models.config import ModelConfig
from rollmill.models.q_network import QNetwork

torch.set_num_threads(1)

Space = gymnasium.Space[Any]
VECTOR = spaces.Box(-np.inf, np.inf, (6,), np.float32)
PICTURE = spaces.Box(0, 255, (4, 84, 84), np.uint8)
CHOICE = spaces.Discrete(5)
BOX = spaces.Box(np.array([-2.0, 0.0, -1.0], np.float32), np.array([2.0, 3.0, 5.0], np.float32))
FREE = spaces.Box(-np.inf, np.inf, (2, 2), np.float64)
MIXED_ACTION = spaces.Dict(
    steer=spaces.Box(-1.0, 1.0, (2,), np.float32), gear=spaces.Discrete(4, start=-1), lights=spaces.MultiBinary(3)
)
MIXED_OBSERVATION = spaces.Dict(
    camera=spaces.Box(0, 255, (24, 24, 3), np.uint8),
    where=spaces.Discrete(5, start=2),
    deep=spaces.Dict(cells=spaces.MultiDiscrete([3, 4]), flags=spaces.MultiBinary(4)),
    pair=spaces.Tuple([spaces.Box(-1, 1, (2,), np.float64), spaces.Box(0, 9, (), np.int64)]),
    grid=spaces.MultiDiscrete([[3, 4], [2, 5]], start=[[1, 2], [3, 4]]),
    lamps=spaces.MultiBinary((2, 3)),
    state=spaces.Box(-1e9, 1e9, (3,), np.float32),
)
MASKED_OBSERVATION = spaces.Dict(obs=VECTOR, action_mask=spaces.MultiBinary(5))
ROWS = 64  # observations by which last layers are chosen
SMALL = ModelConfig(mlp_sizes=(32, 32), shared=False)


class Case(NamedTuple):
    """An agent to export."""

    observation: Space
    action: Space
    model: ModelConfig = SMALL
    algorithm: OnPolicyConfig | OffPolicyConfig = OnPolicyConfig()
    needs_mask: bool = False
    task: TaskSpaces | None = None


GRID = spaces.Box(0, 10, (7, 7, 3), np.uint8)
SOUND = spaces.Box(-32768, 32767, (2, 512), np.int16)
STACKED = spaces.Box(0, 255, (4, 44, 44, 3), np.uint8)

ON_POLICY: Mapping[str, Case] = {
    "MLP": Case(VECTOR, CHOICE),
    "MLP, normalised, PopArt": Case(
        VECTOR, CHOICE, ModelConfig(mlp_sizes=(32,), normalise_observations=True, normalise_returns="popart")
    ),
    "several heads": Case(VECTOR, spaces.MultiDiscrete([3, 2, 4], start=[0, 1, -2])),
    "masks": Case(MASKED_OBSERVATION, CHOICE, needs_mask=True),
    "Gaussian, clipped": Case(
        VECTOR, BOX, ModelConfig(mlp_sizes=(32,), normalise_observations=True, normalise_returns=True)
    ),
    "Gaussian, scaled": Case(VECTOR, BOX, ModelConfig(mlp_sizes=(32,), scale_actions=True, state_dependent_std=True)),
    "Gaussian, squashed": Case(VECTOR, BOX, ModelConfig(mlp_sizes=(32,), squash_actions=True)),
    "Gaussian without bounds, float64": Case(VECTOR, FREE),
    "dict observation, dict action": Case(MIXED_OBSERVATION, MIXED_ACTION, ModelConfig(mlp_sizes=(16,), dense_size=16)),
    "Nature CNN": Case(PICTURE, CHOICE, ModelConfig(encoder="nature")),
    "Nature CNN, centred": Case(PICTURE, CHOICE, ModelConfig(encoder="nature", dense_size=64, centre_pixels=True)),
    "Nature CNN, each image centred": Case(
        PICTURE, CHOICE, ModelConfig(encoder="nature", dense_size=64, centre_pixels="each")
    ),
    "Sample Factory's CNN": Case(PICTURE, CHOICE, ModelConfig(encoder="sf_simplified", dense_size=64)),
    "IMPALA ResNet": Case(PICTURE, CHOICE, ModelConfig(encoder="impala")),
    "stacked colour frames": Case(STACKED, CHOICE, ModelConfig(encoder="nature", dense_size=64)),
    "grid": Case(GRID, CHOICE, ModelConfig(normalise_grids=True)),
    "sound": Case(SOUND, CHOICE),
    "critic of all agents": Case(VECTOR, CHOICE, ModelConfig(mlp_sizes=(32,), shared=False, central_value=True)),
    "GRU": Case(VECTOR, CHOICE, ModelConfig(mlp_sizes=(32,), core="gru", core_size=24)),
    "LSTM": Case(VECTOR, CHOICE, ModelConfig(mlp_sizes=(32,), core="lstm", core_size=24)),
    "Nature CNN, GRU": Case(PICTURE, CHOICE, ModelConfig(encoder="nature", dense_size=64, core="gru", core_size=32)),
}
OFF_POLICY: Mapping[str, Case] = {
    "DQN": Case(VECTOR, CHOICE, SMALL, DQNConfig()),
    "double and dueling DQN, CNN": Case(
        PICTURE, CHOICE, ModelConfig(encoder="nature", dense_size=64), DQNConfig(double=True, dueling=True)
    ),
    "DQN, several heads": Case(VECTOR, spaces.MultiDiscrete([3, 2, 4]), SMALL, DQNConfig(dueling=True)),
    "DQN, masks": Case(MASKED_OBSERVATION, CHOICE, SMALL, DQNConfig(), needs_mask=True),
    "recurrent DQN": Case(
        VECTOR, CHOICE, ModelConfig(mlp_sizes=(32,), core="gru", core_size=24), DQNConfig(value_rescaling=True)
    ),
    "SAC": Case(VECTOR, BOX, SMALL, SACConfig()),
    "SAC, CNN": Case(PICTURE, BOX, ModelConfig(encoder="nature", dense_size=64, mlp_sizes=(32,)), SACConfig()),
    "SAC, choices": Case(VECTOR, spaces.MultiDiscrete([3, 2, 4]), SMALL, SACConfig()),
    "TD3": Case(VECTOR, BOX, SMALL, TD3Config()),
    "DDPG": Case(VECTOR, BOX, SMALL, DDPGConfig()),
}
CASES: Mapping[str, Case] = {**ON_POLICY, **OFF_POLICY}
SAMPLING = [name for name, case in CASES.items() if not isinstance(case.algorithm, DQNConfig | TD3Config | DDPGConfig)]


def lively(weights: Mapping[str, Tensor], seed: int = 0) -> dict[str, Tensor]:
    """Return weights with random normalisers and biases."""
    g = torch.Generator().manual_seed(seed)
    found = {}
    for name, value in weights.items():
        last = name.rpartition(".")[2]
        if last == "shift":
            value = torch.randn(value.shape, generator=g)
        elif last == "scale":
            value = torch.rand(value.shape, generator=g) + 0.5
        elif value.is_floating_point() and value.dim() == 1 and last != "log":
            value = value + 0.3 * torch.randn(value.shape, generator=g)
        found[name] = value
    return found


@torch.no_grad()
def spread(agent: Agent, observation: Any) -> None:
    """Change the last layer of the policy so that actions differ: its outputs get mean 0 and deviation up to 2."""
    network = agent.algorithm.acting
    if isinstance(network, ActorCritic):
        layer: nn.Module = network.heads.policy
    else:
        layer = network.advantage if isinstance(network, QNetwork) else network.get_submodule("mlp")
    outputs: list[Tensor] = []
    hook = layer.register_forward_hook(lambda *given: outputs.append(given[2]))
    choices = agent._spec.mask_size
    agent.act(observation, deterministic=True, action_mask=np.ones((ROWS, choices), bool) if choices else None)
    agent.reset()
    hook.remove()
    *_, weight, bias = layer.parameters()
    std, mean = torch.std_mean(outputs[0], 0)
    # Larger weights would make much of rounding, where a network sees little difference between observations.
    factor = torch.minimum(2.0 / std, 30.0 / weight.norm(dim=1))
    weight.mul_(factor[:, None])
    bias.sub_(mean).mul_(factor)


def make_agent(case: Case, seed: int = 0) -> Agent:
    """Make the agent of a case, as ``rollmill.load`` makes that of a run."""
    torch.manual_seed(seed)
    shared = case.task
    observation, action = (case.observation, case.action) if shared is None else (shared.observation, shared.action)
    specs, spec = observation_specs(observation), action_spec(action)
    is_off_policy = isinstance(case.algorithm, OffPolicyConfig)
    algorithm = make_algorithm(specs, spec.in_unit_box if is_off_policy else spec, case.model, case.algorithm)
    snapshot = Snapshot(
        EnvConfig(name="test/made"), case.model, lively(algorithm.state_dict()), 7, Path("initial.pt"), case.algorithm
    )
    agent = Agent(snapshot, case.observation, case.action, seed=seed, needs_mask=case.needs_mask, task=case.task)
    space = batch_space(case.observation, ROWS)
    space.seed(seed)
    spread(agent, _varied(space.sample(), np.random.default_rng(seed)))
    return agent

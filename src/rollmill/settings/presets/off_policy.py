"""Settings of off-policy algorithms, applied over those of a family's preset, which is made for PPO.

Values are those of Stable-Baselines3's rl-zoo (hyperparams/dqn.yml, ddpg.yml, td3.yml, sac.yml of version 2.6) where it
has the task, else the library's defaults, which go back to the algorithms' papers. ``replay.update_interval`` is its
``train_freq / gradient_steps``, of one environment; where it alternates many steps and as many SGD steps, ours are
spread evenly. Other values have a comment with their reason.
"""

from __future__ import annotations

import re

from rollmill.settings.presets.families import Overrides

# Resets what only on-policy algorithms use, and sets what all off-policy algorithms share.
_ALL: Overrides = {
    "regime": "replay",
    "num_envs": 8,
    "rollout_length": 32,
    "learner.optimiser": "adam",
    "learner.adam_eps": 1e-8,
    "learner.weight_decay": 0.0,
    "learner.schedule": "constant",
    "learner.discount": 0.99,
    "learner.max_grad_norm": None,
    "learner.publish_every": 1,
    "model.core": "none",
    "model.normalise_observations": False,
    "model.normalise_images": False,
    "model.normalise_returns": False,
    "model.normalise_grids": False,
    "model.squash_actions": False,
    "model.scale_actions": False,
    "model.head_sizes": (),
    "model.activation": "auto",
    "model.init": "auto",
    "model.mlp_sizes": (256, 256),
    "population.snapshots": 0,
}

_DQN: Overrides = {
    "off_policy.algorithm": "dqn",
    "learner.batch_size": 32,
    "learner.learning_rate": 1e-4,
    "learner.max_grad_norm": 10.0,
    "replay.update_interval": 4.0,
    "replay.min_size": 10_000,
    "off_policy.epsilon_fraction": 0.1,
    "off_policy.epsilon_end": 0.05,
    "off_policy.random_steps": 0,
}
# Mnih et al. 2015 with what SB3's zoo has for Atari: a replay of 100,000, Adam, targets copied each 1,000 agent steps.
_DQN_ATARI: Overrides = {
    "num_envs": 8,
    "rollout_length": 64,
    "total_steps": 10_000_000,
    "replay.min_size": 50_000,
    "off_policy.target_update_every": 250,
    "off_policy.epsilon_end": 0.01,
    "learner.publish_every": 4,
}
# Tianshou has Pong learned by 1.5 M agent steps from returns of three, with an SGD step for each ten.
_DQN_PONG: Overrides = {
    **_DQN_ATARI,
    "total_steps": 2_000_000,
    "replay.n_step": 3,
    "replay.min_size": 20_000,
    "replay.update_interval": 8.0,
    "off_policy.double": True,
    # At a constant rate one last network played a rally that never ends (docs/journal/).
    "learner.schedule": "linear",
}
# Without pictures SB3's defaults, which are Atari's, learn slowly: with batches of 32, single steps and an SGD step for
# each four agent steps Acrobot was at -262 after 150,000 agent steps, with these at -86 after 100,000 (one seed each;
# docs/journal/2026-11.md). They are between the zoo's for CartPole and for LunarLander.
_DQN_VECTORS: Overrides = {
    "learner.batch_size": 128,
    "learner.learning_rate": 5e-4,
    "learner.schedule": "linear",
    "replay.n_step": 3,
    "replay.capacity": 100_000,
    "replay.min_size": 1_000,
    "replay.update_interval": 2.0,
    "off_policy.target_update_every": 250,
}
# The encoder of boards makes an SGD step of 128 boards as dear as 60 turns: with one for each two turns, connect four
# had 170 turns a second. With one for each 16, each turn is drawn eight times on average, as in Atari.
_DQN_GAMES: Overrides = {
    **_DQN_VECTORS,
    "num_envs": 32,
    "replay.min_size": 5_000,
    "replay.update_interval": 16.0,
}
_DQN_CARTPOLE: Overrides = {
    "num_envs": 1,
    "total_steps": 50_000,
    # The zoo's single steps, batches of 64 and constant 2.3e-3 forget: of five seeds three ended below 200, and one of
    # five still did where the rate fell from 1e-3 (docs/journal/).
    "learner.batch_size": 128,
    "replay.n_step": 3,
    "learner.learning_rate": 1e-3,
    "learner.schedule": "linear",
    "replay.capacity": 100_000,
    "replay.min_size": 1_000,
    "replay.update_interval": 2.0,
    # The zoo says 10 agent steps, but copies between its bursts of 128 SGD steps only.
    "off_policy.target_update_every": 128,
    "off_policy.epsilon_fraction": 0.16,
    "off_policy.epsilon_end": 0.04,
}
_DQN_LUNAR_LANDER: Overrides = {
    "num_envs": 1,
    "total_steps": 100_000,
    "learner.batch_size": 128,
    "learner.learning_rate": 6.3e-4,
    "replay.capacity": 50_000,
    "replay.min_size": 1_000,
    "replay.update_interval": 1.0,
    "off_policy.target_update_every": 250,
    "off_policy.epsilon_fraction": 0.12,
    "off_policy.epsilon_end": 0.1,
}

_CONTINUOUS: Overrides = {
    "num_envs": 1,
    "total_steps": 1_000_000,
    "learner.batch_size": 256,
    "learner.learning_rate": 1e-3,
    "replay.update_interval": 1.0,
    "replay.capacity": "auto",
    # SB3's defaults have 100, TD3's paper 1,000 and, for the locomotion tasks, 10,000.
    "replay.min_size": 1_000,
    "off_policy.random_steps": 1_000,
}
_LOCOMOTION: Overrides = {
    "replay.min_size": 10_000,
    "off_policy.random_steps": 10_000,
    "off_policy.noise_kind": "gaussian",
}
_LOCOMOTION_TASKS = ("halfcheetah", "hopper", "walker2d", "ant", "humanoid", "humanoidstandup", "swimmer")
# Whose names these are.
_TASK_FAMILIES = ("gym", "mujoco", "envpool", "atari")
_DETERMINISTIC: Overrides = {
    **_CONTINUOUS,
    # The TD3 paper's; the zoo's 256 takes twice as long.
    "learner.batch_size": 100,
    "model.mlp_sizes": (400, 300),
    "off_policy.noise_kind": "gaussian",
    "off_policy.noise_std": 0.1,
}
_DDPG: Overrides = {**_DETERMINISTIC, "off_policy.algorithm": "ddpg"}
_TD3: Overrides = {**_DETERMINISTIC, "off_policy.algorithm": "td3"}
# Pink noise is what Eberhard et al. (2023) recommend as the default. With it MountainCarContinuous is at 94.8 and 94.7
# after 50,000 steps (docs/journal/2026-11.md). Tasks that were measured with independent noise keep it.
_SAC: Overrides = {
    **_CONTINUOUS,
    "off_policy.algorithm": "sac",
    "off_policy.noise_kind": "pink",
    "learner.learning_rate": 3e-4,
}

_PENDULUM: Overrides = {"total_steps": 20_000, "replay.capacity": 200_000}
_PENDULUM_DETERMINISTIC: Overrides = {**_PENDULUM, "learner.batch_size": 256, "learner.discount": 0.98}
_PENDULUM_SAC: Overrides = {
    **_PENDULUM,
    "off_policy.noise_kind": "gaussian",
    "learner.learning_rate": 1e-3,
    "replay.min_size": 100,
    "off_policy.random_steps": 100,
}
# The zoo has 400 x 300 units, an SGD step for each agent step, single steps and a replay of all, or nearly all, of its
# steps: 300,000 of DDPG and TD3, 500,000 of SAC.
_LUNAR_LANDER_DDPG: Overrides = {
    "total_steps": 300_000,
    "model.mlp_sizes": (256, 256),
    "learner.discount": 0.98,
    "replay.update_interval": 2.0,
    "replay.capacity": 200_000,
}
# What decides is whether a seed comes to land at all: the smaller of two critics remembers how the first policies
# crashed, and many seeds hover from then on and never touch the ground again. A small replay forgets the crashes
# (docs/journal/).
_LUNAR_LANDER_TD3: Overrides = {
    **_LUNAR_LANDER_DDPG,
    "total_steps": 200_000,
    "replay.n_step": 5,
    "replay.capacity": 30_000,
    "off_policy.tau": 0.02,
}
# The zoo's, with smaller networks and batches, and 200,000 of its 500,000 steps: 256 x 256 units, with half of the SGD
# steps in the same time, may hover or crash.
_LUNAR_LANDER_SAC: Overrides = {
    "total_steps": 200_000,
    "off_policy.noise_kind": "gaussian",
    "model.mlp_sizes": (128, 128),
    "learner.batch_size": 128,
    "learner.learning_rate": 7.3e-4,
    "learner.schedule": "linear",
    "replay.capacity": 200_000,
    "off_policy.tau": 0.01,
}
_LUNAR_LANDERS = {"ddpg": _LUNAR_LANDER_DDPG, "td3": _LUNAR_LANDER_TD3, "sac": _LUNAR_LANDER_SAC}

_BASES = {"dqn": _DQN, "ddpg": _DDPG, "td3": _TD3, "sac": _SAC}


def off_policy_overrides(algorithm: str, preset: str) -> Overrides:
    """The settings of an off-policy algorithm, to be applied over those of a preset.

    Args:
        algorithm: One of ``OFF_POLICY_ALGORITHMS``, or a registered one, which gets DQN's settings.
        preset: The preset's name.
    """
    base = _BASES.get(algorithm, {**_DQN, "off_policy.algorithm": algorithm})
    return {**_ALL, **base, **_of_family(preset), **_of_task(algorithm, preset)}


def _of_family(preset: str) -> Overrides:
    # A million pictures take tens of gigabytes.
    pictures = ("atari/", "vizdoom/", "dmlab/", "pettingzoo/atari/")
    return {"replay.capacity": 100_000} if preset.startswith(pictures) else {}


def _shows_pictures(preset: str) -> bool:
    """Whether the preset's family is known to have images as observations."""
    family, _, name = preset.partition("/")
    if family != "envpool":
        return family in ("vizdoom", "dmlab") or preset.startswith("pettingzoo/atari/")
    from rollmill.envs import envpool

    return envpool.kind(name) in ("atari", "vizdoom")


def _is_game(preset: str) -> bool:
    """Whether the preset is a game of several players, with the encoder of boards."""
    family, _, name = preset.partition("/")
    if family != "envpool":
        return preset.startswith("pettingzoo/classic/")
    from rollmill.envs import envpool

    return envpool.kind(name) == "pgx"


def _of_task(algorithm: str, preset: str) -> Overrides:
    family, _, name = preset.partition("/")
    # A task of the user's own may be called like one of these.
    task = name.lower() if family in _TASK_FAMILIES else ""
    if algorithm == "dqn" or algorithm not in _BASES:
        if preset.startswith("atari/"):
            return _DQN_PONG if task == "pong" else _DQN_ATARI
        if _is(task, "cartpole"):
            return _DQN_CARTPOLE
        if _is(task, "lunarlander"):
            return _DQN_LUNAR_LANDER
        if _is_game(preset):
            return _DQN_GAMES
        return {} if _shows_pictures(preset) else _DQN_VECTORS
    if _is(task, "pendulum"):
        return _PENDULUM_SAC if algorithm == "sac" else _PENDULUM_DETERMINISTIC
    if _is(task, "lunarlander", "lunarlandercontinuous"):
        return _LUNAR_LANDERS[algorithm]
    return _LOCOMOTION if _is(task, *_LOCOMOTION_TASKS) else {}


def _is(task: str, *names: str) -> bool:
    """Whether a task is one of these, in any version."""
    return re.match(rf"(?:{'|'.join(names)})(?![a-z])", task) is not None

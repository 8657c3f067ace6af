"""The reference settings of each family of environments; every value is sourced.

Keys are dotted keys of the whole configuration, which this layer does not import: a test holds them against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

Overrides = Mapping[str, object]

# Atari. Network, discount, lambda, entropy bonus, Adam's epsilon, gradient norm and reward clipping are those of
# CleanRL's ppo_atari.py and of Cleanba's PPO (Huang et al. 2023; arXiv:2310.00036, table of hyperparameters), which go
# back to Schulman et al. (2017) and Mnih et al. (2015). Normalised returns, twice the value coefficient and clipping at
# 0.2 are those of rl_games (configs/atari/ppo_pong_gymnasium.yaml): what the shared layers learn early, they learn from
# the value. Ours for two cores without a GPU, where a sample costs as much to learn from as to simulate: one epoch over
# eight minibatches of 128 instead of four epochs over four of 256, at a learning rate of 1e-3 instead of 2.5e-4, which
# moves the policy as far a sample, and pictures centred by their median, without which such a rate kills nine of ten
# filters (docs/journal/); rollouts of 32 steps (Sample Factory) instead of 128, so that samples are young.
ATARI: Overrides = {
    "num_envs": 64,
    "rollout_length": 32,
    "total_steps": 10_000_000,
    "learner.batch_size": 1024,
    "learner.epochs": 1,
    "learner.minibatches": 8,
    "learner.discount": 0.99,
    "learner.advantage": "gae",
    "learner.gae_lambda": 0.95,
    "learner.clip_range": 0.2,
    "learner.clip_kind": "symmetric",
    "learner.value_coef": 1.0,
    "learner.entropy_coef": 0.01,
    "learner.max_grad_norm": 0.5,
    "learner.optimiser": "adam",
    "learner.learning_rate": 1e-3,
    "learner.adam_eps": 1e-5,
    "learner.schedule": "linear",
    "learner.reward_clip": 1.0,
    "learner.normalise_advantages": True,
    "model.encoder": "nature",
    "model.core": "none",
    "model.centre_pixels": True,
    "model.normalise_returns": True,
    "placement.pin_on_two_cores": True,
}

# Two players or more are as many rows of a game.
ATARI_PLAYERS: Overrides = {**ATARI, "num_envs": 32}

# VizDoom. Rollout, batch, epochs, discount, Adam's epsilon and gradient norm are those of the Sample Factory paper
# (Petrenko et al. 2020, arXiv:2006.11751), table A.5; network: its "simplified" one with a GRU of 512 (figure A.1),
# as in its experiments with the standard scenarios; GAE instead of V-trace, as in its version 2.1.1. Ours, for runs
# of some million samples instead of hundreds of millions (docs/journal/): 16 SGD steps of 4e-4 for a batch of 2,048
# instead of one of 1e-4, clipping at 0.2, five times the entropy bonus, and the value as in the Atari preset; the
# game variables with the picture, as the package's own Gymnasium environments give them; and 64 environments, so
# that a group has 16 rows: with fewer, inference spends its time on streaming the weights; and pictures are centred.
VIZDOOM: Overrides = {
    "num_envs": 64,
    "rollout_length": 32,
    "total_steps": 10_000_000,
    "learner.batch_size": 2048,
    "learner.epochs": 1,
    "learner.minibatches": 16,
    "learner.discount": 0.99,
    "learner.advantage": "gae",
    "learner.gae_lambda": 0.95,
    "learner.clip_range": 0.2,
    "learner.clip_kind": "symmetric",
    "learner.value_coef": 1.0,
    "learner.entropy_coef": 0.015,
    "learner.max_grad_norm": 4.0,
    "learner.optimiser": "adam",
    "learner.learning_rate": 4e-4,
    "learner.adam_eps": 1e-6,
    "learner.schedule": "constant",
    "learner.normalise_advantages": True,
    "model.encoder": "sf_simplified",
    "model.core": "gru",
    "model.core_size": 512,
    "model.centre_pixels": True,
    "model.normalise_observations": True,
    "model.normalise_returns": True,
    "placement.pin_on_two_cores": True,
}

# Factors that Sample Factory's doom_utils.py puts on rewards (reported returns stay raw); the scenarios that it lacks,
# or trains with shaped rewards that we leave out, are scaled alike where their rewards are of the same size.
VIZDOOM_REWARD_SCALE: Mapping[str, float] = {
    "basic": 0.01,
    "basic_audio": 0.01,
    "basic_notifications": 0.01,
    "deadly_corridor": 0.01,
    "health_gathering": 0.01,
    "health_gathering_supreme": 0.01,
    "learning": 0.01,
    "rocket_basic": 0.01,
    "simpler_basic": 0.01,
    "take_cover": 0.01,
}

# Battle and Battle2 of the Sample Factory paper: a kill pays 1, health and ammunition a little (its section A.3). The
# weights are those of its version 2.1.1, whose Battle shows no ammunition but that of the weapon in hand, so that there
# only health pays, and holding a loaded weapon.
VIZDOOM_BATTLE: Overrides = {
    **VIZDOOM,
    "learner.reward_weights": {
        "health_gain": 0.005,
        "health_loss": -0.003,
        "ammo_gain": 0.0002,
        "ammo_loss": -0.0001,
    },
}

# What a fighter holds, in both tables of weights for matches in the paper (its section A.3.1).
_HOLDINGS = MappingProxyType(
    {
        "armor_gain": 0.005,
        "armor_loss": -0.001,
        "weapon_gain": 0.02,
        "weapon_loss": -0.01,
        "ammo_gain": 0.0002,
        "ammo_loss": -0.0001,
        "weapon_held": 0.0002,
    }
)

# Matches against bots: all terms of the paper's reward, halved, and a longer horizon, since a step is two tics instead
# of four.
VIZDOOM_MATCH: Overrides = {
    **VIZDOOM,
    "learner.discount": 0.995,
    "learner.reward_scale": 0.5,
    "learner.reward_weights": {
        "frag_loss": -0.5,
        "death": -0.75,
        "hit": 0.01,
        "damage": 0.003,
        "health_gain": 0.005,
        "health_loss": -0.003,
        **_HOLDINGS,
    },
}

# Matches of agents against each other: the weights of the paper's self-play, where what one player loses another one
# mostly wins. A match has an engine for each player, hence fewer of them.
VIZDOOM_SELF_PLAY: Overrides = {
    **VIZDOOM_MATCH,
    "num_envs": 16,
    "learner.reward_weights": {
        "frag_loss": 0.999,
        "death": -1.0,
        "damage": 0.01,
        "health_gain": 0.01,
        "health_loss": -0.01,
        **_HOLDINGS,
    },
}

# DeepMind Lab: the Sample Factory paper. What it states for DMLab-30 (section A.2) is the network of IMPALA, of which
# its version 2 (sf_examples/dmlab/dmlab_params.py) has the residual encoder and the LSTM of 256, and the actions, which
# resolve.py sets. What it calls the basic hyperparameters of all its experiments is table A.5. Clipped rewards are its
# code's and IMPALA's. The rest is VizDoom's. Nothing of this was trained here: the engine could not be had.
DMLAB: Overrides = {
    **VIZDOOM,
    "learner.minibatches": 1,
    "learner.advantage": "vtrace",
    "learner.vtrace_rho": 1.0,
    "learner.vtrace_c": 1.0,
    "learner.clip_kind": "reciprocal",
    "learner.clip_range": 0.1,
    "learner.value_coef": 0.5,
    "learner.entropy_coef": 0.003,
    "learner.learning_rate": 1e-4,
    "learner.reward_weights": {"clip": 1.0},
    "model.encoder": "impala",
    "model.core": "lstm",
    "model.core_size": 256,
    # Hashed words are 0 or 1, and Sample Factory leaves them as they are, too.
    "model.normalise_observations": False,
}

# MuJoCo: Sample Factory's mujoco_params.py (version 2.1), of which we take rollout, batch, discount, lambda, clipping,
# coefficients, gradient norm and the normalisers. Network from Stable-Baselines3's rl-zoo (hyperparams/ppo.yml,
# HalfCheetah, Hopper, Walker2d and Ant: separate critic, 256x256 ReLU units, small initial noise), with a standard
# deviation of e^-1 at the start (theirs is e^-2; Andrychowicz et al. 2021, section 3.3, find 0.5 best). Ours: 32
# environments instead of 64, for two cores; four epochs over eight minibatches of 128, which an idle learner has time
# for; a learning rate of 3e-4 (CleanRL) instead of 2.95e-3, which went with an auxiliary KL loss that we do not have.
MUJOCO: Overrides = {
    "num_envs": 32,
    "rollout_length": 64,
    "total_steps": 5_000_000,
    "learner.batch_size": 1024,
    "learner.epochs": 4,
    "learner.minibatches": 8,
    "learner.discount": 0.99,
    "learner.advantage": "gae",
    "learner.gae_lambda": 0.95,
    "learner.clip_range": 0.2,
    "learner.clip_kind": "reciprocal",
    "learner.value_coef": 1.3,
    "learner.entropy_coef": 0.0,
    "learner.max_grad_norm": 3.5,
    "learner.optimiser": "adam",
    "learner.learning_rate": 3e-4,
    "learner.adam_eps": 1e-6,
    "learner.schedule": "linear",
    "learner.normalise_advantages": True,
    "model.encoder": "mlp",
    "model.mlp_sizes": (256, 256),
    "model.activation": "relu",
    "model.initial_log_std": -1.0,
    "model.shared": False,
    "model.core": "none",
    "model.normalise_observations": True,
    "model.normalise_returns": True,
}

# CartPole. Stable-Baselines3's rl-zoo (hyperparams/ppo.yml, CartPole-v1: rollouts of 32 steps, discount
# 0.98, lambda 0.8, learning rate 1e-3, falling linearly, clipping 0.2, no entropy bonus), with the batch and its four
# epochs grown to 32 trajectories. Ours: clipping does not fall, and 64 environments, which keep the learner
# busy (docs/journal/).
CARTPOLE: Overrides = {
    "num_envs": 64,
    "rollout_length": 32,
    "total_steps": 1_000_000,
    "learner.batch_size": 1024,
    "learner.epochs": 4,
    "learner.minibatches": 4,
    "learner.discount": 0.98,
    "learner.advantage": "gae",
    "learner.gae_lambda": 0.8,
    "learner.clip_range": 0.2,
    "learner.clip_kind": "symmetric",
    "learner.value_coef": 0.5,
    "learner.entropy_coef": 0.0,
    "learner.max_grad_norm": 0.5,
    "learner.optimiser": "adam",
    "learner.learning_rate": 1e-3,
    "learner.adam_eps": 1e-5,
    "learner.schedule": "linear",
    "learner.normalise_advantages": True,
    "model.encoder": "mlp",
    "model.mlp_sizes": (64, 64),
    "model.core": "none",
}

# The same on EnvPool, where simulation costs next to nothing: so many environments that work per group is nothing
# either, short rollouts so that samples stay young, and one pass over large batches.
CARTPOLE_POOL: Overrides = {
    **CARTPOLE,
    "num_envs": 8192,
    "rollout_length": 16,
    "total_steps": 20_000_000,
    "learner.batch_size": 65_536,
    "learner.epochs": 1,
    "learner.minibatches": 16,
}

# Any environment that no other preset is for: CleanRL's ppo.py, with the learning rate of ppo_continuous_action.py
# (3e-4, the more careful one) and other sizes. Actor and critic are separate for vectors, and the learning rate is
# constant, as in Stable-Baselines3: with a shared network and a linear schedule, BipedalWalker was at -86 and 173
# instead of 285 and 254 after 500,000 steps, LunarLander at 195 and 114 instead of 168 and 219 after 300,000. Real
# numbers get an entropy bonus of 0.003, choices the 0.01 of CleanRL (see `auto_entropy_coef`). Real numbers are drawn
# in units of half the range of their bounds, because the environment's units are unknown. Vectors and returns are
# normalised, since their scale is unknown, and pictures are centred (docs/journal/). Sizes: 32 rollouts of 64 steps in
# minibatches of 128, with eight passes (four with pictures): two fifths of the SGD steps that SB3's defaults take for a
# sample, twice those of CleanRL. With two passes over minibatches of 256, as this preset had before, Pendulum was at
# -1,152 instead of -160 after 300,000 steps, and MountainCar at -163 instead of -116 (docs/journal/2026-11.md).
GENERIC: Overrides = {
    "num_envs": 32,
    "rollout_length": 64,
    "total_steps": 5_000_000,
    "learner.batch_size": 2048,
    "learner.epochs": "auto",
    "learner.minibatches": 16,
    "learner.discount": 0.99,
    "learner.advantage": "gae",
    "learner.gae_lambda": 0.95,
    "learner.clip_range": 0.2,
    "learner.clip_kind": "symmetric",
    "learner.value_coef": 0.5,
    "learner.entropy_coef": "auto",
    "learner.max_grad_norm": 0.5,
    "learner.optimiser": "adam",
    "learner.learning_rate": 3e-4,
    "learner.adam_eps": 1e-5,
    "learner.schedule": "constant",
    "learner.normalise_advantages": True,
    "model.encoder": "auto",
    "model.shared": "auto",
    "model.core": "none",
    "model.centre_pixels": True,
    "model.scale_actions": "auto",
    "model.normalise_observations": True,
    "model.normalise_returns": True,
}

# Games of several players who take turns (EnvPool's, and PettingZoo's classic ones), by self-play. Sizes: groups of 32
# games, of which as many rows act at each step, and few SGD steps on large batches, because the policy plays against
# itself and must not run ahead of what it has seen. An entropy bonus of 0.04: with 0.01 the policy soon plays the same
# game again and again; after 2.2 million turns it had 0.27 of the points against a minimax of depth 4 and 0.29 against
# one that only wins or blocks at once, with 0.04 0.40 and 0.56 (connect four; docs/journal/). The encoder of boards, of
# one dense layer then, had 0.45 and 0.69. Rewards are those of the rules, so that returns are not normalised. Past
# selves: OpenAI Five (Berner et al. 2019, https://arxiv.org/abs/1912.06680, appendix N) has them in 20 % of the
# matches; with 30 %, and a bank that reaches back to the start, play goes on getting better against others, too, and
# not against itself alone.
GAMES: Overrides = {
    "num_envs": 128,
    "rollout_length": 32,
    "total_steps": 10_000_000,
    "learner.batch_size": 8192,
    "learner.epochs": 2,
    "learner.minibatches": 8,
    "learner.discount": 0.99,
    "learner.advantage": "gae",
    "learner.gae_lambda": 0.95,
    "learner.clip_range": 0.2,
    "learner.clip_kind": "symmetric",
    "learner.value_coef": 0.5,
    "learner.entropy_coef": 0.04,
    "learner.max_grad_norm": 0.5,
    "learner.optimiser": "adam",
    "learner.learning_rate": 1e-3,
    "learner.adam_eps": 1e-5,
    "learner.schedule": "constant",
    "learner.normalise_advantages": True,
    "model.encoder": "board",
    "model.mlp_sizes": (256, 256),
    "model.shared": True,
    "model.core": "none",
    "population.snapshots": 16,
    "population.snapshot_every": 100_000,
    "population.keep": "spread",
    "population.past": 0.3,
}

# MiniGrid: lcswillems/rl-starter-files (scripts/train.py, the reference of the MiniGrid authors): PPO, four epochs in
# minibatches of 256, discount 0.99, lambda 0.95, clipping 0.2, entropy 0.01, gradient norm 0.5, Adam's epsilon 1e-8;
# ours: learning rate 5e-4 for 1e-3, since samples are used asynchronously.
MINIGRID: Overrides = {
    "num_envs": 32,
    "rollout_length": 32,
    "total_steps": 2_000_000,
    "learner.batch_size": 1024,
    "learner.epochs": 4,
    "learner.minibatches": 4,
    "learner.discount": 0.99,
    "learner.advantage": "gae",
    "learner.gae_lambda": 0.95,
    "learner.clip_range": 0.2,
    "learner.clip_kind": "symmetric",
    "learner.value_coef": 0.5,
    "learner.entropy_coef": 0.01,
    "learner.max_grad_norm": 0.5,
    "learner.optimiser": "adam",
    "learner.learning_rate": 5e-4,
    "learner.adam_eps": 1e-8,
    "learner.schedule": "constant",
    "learner.normalise_advantages": True,
    "model.encoder": "auto",
    "model.core": "none",
}

# Tasks that ask for memory: a GRU over rollouts that hold what must be remembered and its use (the corridor of MemoryS7
# is walked in about 10 steps), at the reference's learning rate. Three times its entropy bonus: with 0.01 agents stop
# looking around and guess before they have learned what to remember (docs/journal/).
MINIGRID_MEMORY: Overrides = {
    **MINIGRID,
    "learner.batch_size": 2048,
    "learner.learning_rate": 1e-3,
    "learner.entropy_coef": 0.03,
    "model.core": "gru",
    "model.core_size": 128,
}

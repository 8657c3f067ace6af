"""Lockstep as it is defined: pi_{i+1} = update(pi_i, D_i), with D_i collected by pi_max(0, i - lag).

One process, one loop: no workers, no queues, no shared memory, nothing overlaps. What a run with all its processes
leaves must equal this, bit for bit.
"""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import torch

from rollmill.algorithms.ppo import PPO
from rollmill.envs.random_actions import random_actions
from rollmill.envs.views import ObservationView, OutcomeView
from rollmill.learning.fingerprints import FINGERPRINTS_FILE, Fingerprints
from rollmill.learning.minibatches import Minibatches
from rollmill.learning.settled import settled_fast_path
from rollmill.learning.trajectories import gather_trajectories_of
from rollmill.learning.update import Update
from rollmill.regimes.lockstep import plan_topology
from rollmill.regimes.setup import Probed, build_group, random_steps
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.runtime.row_noise import RowNoise
from rollmill.runtime.seeds import int_seed, stream
from rollmill.settings.config import Config
from rollmill.settings.regime_config import LockstepConfig
from rollmill.storage.slots import SlotStore, add_to_layout, slot_fields


def serial(config: Config, probed: Probed, updates: int, folder: Path) -> dict[str, torch.Tensor]:
    """The weights after so many iterations.

    Args:
        config: Resolved, in lockstep.
        probed: What the environment and the network are.
        updates: Iterations.
        folder: Gets their fingerprints.
    """
    spec, steps = probed.spec, config.rollout_length
    topology = plan_topology(config, probed)
    fields = slot_fields(spec, rollout_length=steps, state_size=probed.state_size)
    layout = ArenaLayout()
    add_to_layout(layout, fields, topology)
    store = SlotStore(Arena.create(layout), fields, topology, create=True)
    a, rows, count = store.arrays, topology.group_rows, topology.num_groups

    torch.manual_seed(int_seed(config.seed, "initial weights", 0))
    algorithm = PPO(spec.observation, spec.action, config.model, config.on_policy)
    model = algorithm.acting
    path = settled_fast_path(algorithm, spec, config.compute)
    algorithm.encoder_batch = path.micro_batch
    random = np.random.default_rng(int_seed(config.seed, "learner", 0))
    torch.manual_seed(int_seed(config.seed, "learner", 0))
    lag = config.regime_as(LockstepConfig).lag
    update = Update(algorithm, config.optimiser, path)
    cut = Minibatches(algorithm, store.observation, path, random)
    noise = RowNoise(config.seed, "actions", width=model.distribution.noise_size)

    groups = [build_group(config, g, spec=spec) for g in range(count)]

    def shown(g: int, t: int) -> ObservationView:
        seen = {name: array[g, t] for name, array in store.observation.items()}
        return ObservationView(seen, a["action_mask"][g, t] if "action_mask" in a else None, a["reset"][g, t])

    def outcome(g: int, t: int) -> OutcomeView:
        return OutcomeView(*(a[name][g, t] for name in OutcomeView._fields[:6]))

    for g, group in enumerate(groups):
        group.reset(shown(g, 0))
        own = stream(config.seed, "decorrelation", g)
        for _ in range(random_steps(config)(g)):
            group.step(*random_actions(spec.action, shown(g, 0).action_mask, rows, own), shown(g, 0), outcome(g, 0))

    state = torch.zeros(count, rows, model.state_size)
    versions = [(copy.deepcopy(model), model.value_moments())]
    fingerprints = Fingerprints(folder / FINGERPRINTS_FILE, store.observation)
    agent_steps = 0
    for i in range(updates):
        acting, moments = versions[max(0, i - lag)]
        for t in range(steps + 1):
            for first in range(0, count, topology.groups_per_batch):
                batch = list(range(first, first + topology.groups_per_batch))
                seen = {
                    n: torch.from_numpy(v[batch, t].reshape(-1, *v.shape[3:])) for n, v in store.observation.items()
                }
                reset = torch.from_numpy(a["reset"][batch, t].reshape(-1))
                carried = state[batch].view(-1, model.state_size) if model.state_size else None
                if t == 0 and model.state_size:
                    a["rnn_state"][batch] = state[batch].numpy()
                with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=path.precision == "bf16"):
                    output = acting(seen, carried, reset)
                a["value"][batch, t] = output.value.float().numpy().reshape(-1, rows)
                if t == steps:
                    continue
                who = (np.array(batch)[:, None] * rows + np.arange(rows)).reshape(-1)
                uniform = torch.from_numpy(noise.uniform(who, np.full(len(who), i * steps + t)))
                sample = acting.distribution.sample_with_log_prob(output.params.float(), None, uniform=uniform)
                assert sample.discrete is not None
                a["action_discrete"][batch, t] = sample.discrete.numpy().reshape(len(batch), rows, -1)
                a["log_prob"][batch, t] = sample.log_prob.numpy().reshape(-1, rows)
                a["policy_version"][batch, t] = max(0, i - lag)
                if model.state_size:
                    state[batch] = output.rnn_state.float().view(-1, rows, model.state_size)
                for g in batch:
                    groups[g].step(a["action_discrete"][g, t], None, shown(g, t + 1), outcome(g, t))
        data = gather_trajectories_of(store, np.array([(g, 0, rows, g * rows) for g in range(count)]))
        targets = algorithm.prepare(data.arrays, value_mean=moments[0], value_std=moments[1])
        keep = data.arrays["valid"].astype(bool)
        update.set_learning_rate(config.optimiser.learning_rate * (1 - agent_steps / config.total_steps))
        kept = data.observation_index[:steps][keep]
        model.update_normaliser(cut.observations(kept))
        if model.centres_pixels:
            model.update_pixel_levels(cut.observations(random.choice(kept, min(len(kept), 8), replace=False)))
        if model.normalises_returns:
            model.update_value_normaliser(torch.from_numpy(targets.return_[keep]))
        learner = config.on_policy
        coefficients = algorithm.coefficients(
            {"clip_range": learner.clip_range, "entropy_coef": learner.entropy_weight}
        )
        for minibatch in cut.of(data, targets, keep, coefficients):
            step = update.step(minibatch)
            assert step is not None
            cut.keep_moments(step.moments)
        fingerprints.add(i, data, algorithm, update.optimisers)
        agent_steps += int(keep.sum())
        versions.append((copy.deepcopy(model), model.value_moments()))
        for name in store.carried:
            a[name][:count, 0] = a[name][:count, steps]
    return dict(algorithm.state_dict())

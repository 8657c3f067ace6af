"""The policy worker's loop: collect ready groups, run one forward pass, write actions into their slots.

Everything it writes carries the version of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollmill.algorithms.base import Action
from rollmill.algorithms.on_policy import OnPolicyAlgorithm
from rollmill.envs.random_actions import random_actions
from rollmill.inference.acting_weights import ActingAlgorithm, ActingWeights
from rollmill.inference.action_checks import check_action
from rollmill.inference.batching import Batching
from rollmill.inference.config import InferenceConfig
from rollmill.inference.explorers import Explorer
from rollmill.inference.guests import Guest, ScriptedGuest
from rollmill.inference.observation_readers import ObservationReader
from rollmill.inference.past_selves import PastSelves
from rollmill.inference.recurrent_states import RecurrentStates
from rollmill.inference.requests import Requests
from rollmill.roles import InferenceCounter, InferencePhase
from rollmill.runtime.child import ChildContext
from rollmill.specs import ActionSpec
from rollmill.storage.slots import ACTIONS, POLICY_ID, SlotStore, encode

_POLL_S = 0.2


class _Pass(NamedTuple):
    """What an on-policy network has computed for its rows."""

    algorithm: OnPolicyAlgorithm
    version: int
    requests: Requests
    mask: NDArray[np.bool_] | None
    params: Tensor
    value: Tensor

    @property
    def choice(self) -> tuple[object, ...]:
        """How actions are chosen: of several passes at once only if it is the same."""
        distribution = self.algorithm.acting.distribution
        return type(self.algorithm).choose, type(distribution), distribution.squash


class PolicyWorker:
    """Answers the requests of its groups until the stop flag is set.

    Args:
        context: The process's stop flag, ledger and messages.
        store: The slots.
        index: Index of this policy worker, and its lane in every inbox.
        action: The action spec, in the format of slots.
        config: The configuration, with a resolved precision.
        device: The worker's device.
        batching: Groups requests into batches.
        weights: For each policy, chooses the weights of a batch.
        reader: Reads x_t.
        explorer: Builds the exploration context.
        states: Recurrent states.
        seed: Keys random actions.
        past_selves: For each policy, the networks of its past selves; empty without banks.
        guests: Players that do not learn.
    """

    def __init__(
        self,
        context: ChildContext,
        store: SlotStore,
        *,
        index: int,
        action: ActionSpec,
        config: InferenceConfig,
        device: torch.device,
        batching: Batching,
        weights: Sequence[ActingWeights],
        reader: ObservationReader,
        explorer: Explorer,
        states: RecurrentStates,
        seed: int,
        past_selves: Sequence[PastSelves] = (),
        guests: Sequence[Guest] = (),
    ) -> None:
        self._context = context
        self._ledger = context.ledger
        self._store = store
        self._index = index
        self._action = action
        self._skips_policy = config.skip_policy
        self._bf16 = not config.skip_policy and config.precision == "bf16"
        self._device = device
        self._batching = batching
        self._weights = weights
        self._reader = reader
        self._explorer = explorer
        self._states = states
        self._rollout_length = store.topology.rollout_length
        self._worker_of_group = np.asarray(store.topology.worker_of_group, np.int64)
        self._mask = store.arrays.get("action_mask")
        self._reset = store.arrays["reset"]
        self._random = np.random.default_rng(seed)
        self._past_selves = past_selves
        self._guests = guests
        self._players = store.topology.players
        self._players_of_rows = store.arrays.get(POLICY_ID)

    @torch.inference_mode()
    def run(self) -> None:
        """Serve requests until the stop flag is set."""
        if not self._skips_policy and not self._await_first_weights():
            return
        while not self._context.stop.is_set():
            self._ledger.enter(InferencePhase.WAITING)
            for groups in self._batching.batches():
                self.answer(groups)

    def answer(self, groups: NDArray[np.int64]) -> None:
        """Answer the requests of these groups, int64 ``[n]``, with one forward pass."""
        self._context.inject_delay()
        requests = Requests(self._store, groups)
        self._compute(requests)
        self._send(requests)

    def _await_first_weights(self) -> bool:
        """Wait for the learners' initial weights; False if the run ends first."""
        self._ledger.enter(InferencePhase.WAITING)
        for weights in self._weights:
            while not weights.await_first(_POLL_S):
                self._ledger.enter(InferencePhase.WAITING)  # a sign of life
                if self._context.stop.is_set():
                    return False
        return True

    def _compute(self, requests: Requests) -> None:
        """Run one forward pass of each player for its rows, and write the results into their slots."""
        mask = None if self._mask is None else requests.read(self._mask)
        if self._skips_policy:
            self._write_actions(requests, *random_actions(self._action, mask, requests.num_rows, self._random))
            return
        self._ledger.enter(InferencePhase.GATHERING)
        state = self._states.take(requests)
        # x_T: its value completes the slot. Its action is chosen as x_0 of the next slot, by the version used there.
        wants_value_only = requests.steps[0] == self._rollout_length
        if self._players_of_rows is None:
            self._ledger.enter(InferencePhase.LOADING)
            self._forward(self._weights[0].acting_for(requests.groups), requests, state, mask, wants_value_only)
        else:
            players = requests.read(self._players_of_rows)
            self._compute_of_players(requests, players, state, mask, wants_value_only)
        if wants_value_only:
            self._states.share(requests.groups)

    def _compute_of_players(
        self,
        requests: Requests,
        players: NDArray[Any],
        state: Tensor | None,
        mask: NDArray[np.bool_] | None,
        wants_value_only: bool,
    ) -> None:
        """Run each player's network for its rows, and choose and write the actions of all of them together."""
        split = requests.by_player(players)
        passes: list[_Pass] = []
        for player, chosen, part in split.parts:
            if wants_value_only and player >= self._players.policies:
                continue  # no value is needed: only turns of policies are learned from
            self._ledger.enter(InferencePhase.LOADING)
            acting = self._acting_for(player, requests.groups)
            own_mask = None if mask is None else mask[chosen]
            if isinstance(acting, ScriptedGuest):
                self._follow(acting, part, own_mask)
                continue
            size = acting.algorithm.state_size
            own_state = state[chosen][:, :size] if state is not None and size else None
            if wants_value_only or not acting.chooses_by_distribution:
                self._forward(acting, part, own_state, own_mask, wants_value_only)
            else:
                passes.append(self._run(acting, part, own_state, own_mask))
        if len(passes) == len(split.parts) and len({each.choice for each in passes}) == 1:
            self._choose(passes, requests, mask, split.order)
        else:
            for each in passes:
                self._choose([each], each.requests, each.mask, None)

    def _run(
        self, acting: ActingAlgorithm, requests: Requests, state: Tensor | None, mask: NDArray[np.bool_] | None
    ) -> _Pass:
        """Run an on-policy network for these rows, without choosing actions."""
        self._ledger.enter(InferencePhase.GATHERING)
        observation, reset = self._reader.read(requests), self._read_reset(requests)
        self._ledger.enter(InferencePhase.FORWARD)
        algorithm = acting.algorithm
        assert isinstance(algorithm, OnPolicyAlgorithm)
        with self._precision_of(acting):
            output = algorithm.acting(observation, state, reset)
        self._states.keep(requests, output.rnn_state)
        return _Pass(algorithm, acting.version, requests, mask, output.params, output.value)

    def _choose(
        self, passes: Sequence[_Pass], requests: Requests, mask: NDArray[np.bool_] | None, order: Tensor | None
    ) -> None:
        """Choose a_t of the rows of some passes, and write it into the slots.

        Choosing a few actions takes as long as a layer, so it is done once for the rows of all policies. They have the
        actions of the same environments.
        """
        first = passes[0]
        params, value = first.params, first.value
        versions: NDArray[np.int64] | int = first.version
        if len(passes) > 1:
            params = torch.cat([each.params for each in passes])
            value = torch.cat([each.value for each in passes])
            versions = np.repeat([each.version for each in passes], [each.requests.num_rows for each in passes])
            if order is not None:
                params, value, versions = params[order], value[order], versions[order.numpy()]
        explore = self._explorer.explore(requests, self._read_reset(requests), mask)
        on_device = None if mask is None else torch.from_numpy(mask).to(self._device)
        self._write(first.algorithm.choose(params, value, on_device, explore), requests, versions)

    def _read_reset(self, requests: Requests) -> Tensor:
        return torch.from_numpy(requests.read(self._reset)).to(self._device)

    def _follow(self, guest: ScriptedGuest, requests: Requests, mask: NDArray[np.bool_] | None) -> None:
        """Write the actions that a scripted guest chooses."""
        self._ledger.enter(InferencePhase.FORWARD)
        store, first = self._store, int(requests.groups[0])
        observation = {name: requests.read(array) for name, array in store.observation.items()}
        when = first, int(store.group_iteration[first]), int(requests.steps[0])
        self._write_actions(requests, *guest.choose(observation, mask, requests.num_rows, when))
        requests.fill(store.arrays["policy_version"], 0)

    def _acting_for(self, player: int, groups: NDArray[np.int64]) -> Guest:
        """Return a player's network, with its weights loaded, or a scripted guest."""
        if (guest := self._players.guest_index(player)) is not None:
            return self._guests[guest]
        if not self._players.is_past(player):
            return self._weights[player].acting_for(groups)
        policy, place = self._players.place(player)
        return self._past_selves[policy].acting_for(place)

    def _forward(
        self,
        acting: ActingAlgorithm,
        requests: Requests,
        state: Tensor | None,
        mask: NDArray[np.bool_] | None,
        wants_value_only: bool,
    ) -> None:
        """Run one network for these rows."""
        if not requests.num_rows:
            return
        self._ledger.enter(InferencePhase.GATHERING)
        observation = self._reader.read(requests)
        reset = self._read_reset(requests)
        self._ledger.enter(InferencePhase.FORWARD)
        if wants_value_only:
            self._evaluate(acting, requests, observation, state, reset)
        else:
            self._act(acting, requests, observation, state, reset, mask)

    def _evaluate(
        self,
        acting: ActingAlgorithm,
        requests: Requests,
        observation: Mapping[str, Tensor],
        state: Tensor | None,
        reset: Tensor,
    ) -> None:
        """Compute V(x_T), and write it into the slots."""
        assert isinstance(acting.algorithm, OnPolicyAlgorithm), "replays need no values"
        with self._precision_of(acting):
            value = acting.algorithm.value(observation, state, reset)
        self._ledger.enter(InferencePhase.SCATTERING)
        requests.write(self._store.arrays["value"], value.cpu().numpy())

    def _act(
        self,
        acting: ActingAlgorithm,
        requests: Requests,
        observation: Mapping[str, Tensor],
        state: Tensor | None,
        reset: Tensor,
        mask: NDArray[np.bool_] | None,
    ) -> None:
        """Choose a_t, and write it into the slots."""
        explore = self._explorer.explore(requests, reset, mask) if acting.explores else None
        on_device = None if mask is None else torch.from_numpy(mask).to(self._device)
        with self._precision_of(acting):
            action, state = acting.algorithm.act_with_state(observation, state, reset, on_device, explore)
        if not acting.is_on_policy:
            check_action(acting.algorithm, action, self._action, requests.num_rows)
        self._states.keep(requests, state)
        self._write(action, requests, acting.version)

    def _precision_of(self, acting: ActingAlgorithm) -> AbstractContextManager[object]:
        if self._bf16 and acting.needs_autocast:
            return torch.autocast(self._device.type, torch.bfloat16)
        return nullcontext()

    def _write(self, action: Action, requests: Requests, version: NDArray[np.int64] | int) -> None:
        """Scatter an algorithm's results, and the version of its weights (for each row or all), into the slots."""
        arrays = self._store.arrays
        discrete, continuous = action.discrete, action.continuous
        self._write_actions(
            requests,
            None if discrete is None else discrete.cpu().numpy(),
            None if continuous is None else continuous.float().cpu().numpy(),
        )
        self._ledger.enter(InferencePhase.SCATTERING)
        requests.fill(arrays["policy_version"], version)
        if action.log_prob is None or action.value is None or "value" not in arrays:  # a replay keeps neither
            return
        value = action.value.cpu().numpy()
        requests.write(arrays["log_prob"], action.log_prob.cpu().numpy())
        requests.write(arrays["value"], value)
        requests.write_behind(arrays["value"], value, self._rollout_length)

    def _write_actions(
        self, requests: Requests, discrete: NDArray[Any] | None, continuous: NDArray[Any] | None
    ) -> None:
        """Scatter the actions ``[m, ...]`` into the slots."""
        arrays = self._store.arrays
        if discrete is not None:
            requests.write(arrays["action_discrete"], discrete)
        if continuous is not None:
            requests.write(arrays["action_continuous"], continuous)

    def _send(self, requests: Requests) -> None:
        """Notify the rollout workers of these groups."""
        store = self._store
        self._ledger.enter(InferencePhase.SCATTERING)
        for group in requests.groups.tolist():
            delivered = store.inboxes[self._worker_of_group[group]].put(self._index, encode(ACTIONS, group))
            assert delivered, "the inbox must have room for every group"
        self._ledger.add(InferenceCounter.ROWS, requests.num_rows)
        self._ledger.add(InferenceCounter.BATCHES, 1)

"""The built-in model of on-policy algorithms: normaliser, encoder, optional core, heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rollmill.models.config import Activation, ModelConfig
from rollmill.models.convolutions import centred_layers, observing_pixel_levels, set_channels_last
from rollmill.models.cores import RecurrentCore, make_core, state_for, zero_state
from rollmill.models.distributions import ActionDistribution
from rollmill.models.initialisation import activation_module, initialise_dense
from rollmill.models.linear import Dense
from rollmill.models.normalisers import ObservationNormaliser
from rollmill.models.observation import make_encoder
from rollmill.models.popart import PopArt
from rollmill.models.precision import in_full_precision
from rollmill.models.running_moments import RunningMeanStd, Sum
from rollmill.specs import CENTRAL_VIEW, TASK, ActionSpec, ArraySpec


def _entries(observation: Mapping[str, Tensor], names: Sequence[str] | None) -> Mapping[str, Tensor]:
    """Return some entries of an observation; all if ``names`` is None."""
    return observation if names is None else {name: observation[name] for name in names}


class ActorCriticOutput(NamedTuple):
    """Result of a forward pass.

    Attributes:
        params: float32 ``[..., P]``, see :class:`rollmill.models.distributions.ActionDistribution`.
        value: float32 ``[...]``; in normalised units if the model normalises returns, but with PopArt in those of the
            rewards.
        rnn_state: float32 ``[N, S]`` after the last step; None without a core.
    """

    params: Tensor
    value: Tensor
    rnn_state: Tensor | None


class ActorCritic(nn.Module):
    """Actor and critic.

    The encoder and the core respect autocast; the heads always compute in float32, because bfloat16 gives a value three
    digits. No layer behaves differently in training.

    Args:
        observation: Name -> spec.
        action: The action of one row.
        config: The network's configuration.

    Attributes:
        distribution: How to read ``params``.
        state_size: Width of the recurrent state; 0 without a core.
        return_normaliser: Running statistics of the returns, or None.

    Raises:
        ValueError: The configuration does not fit the specs.
    """

    def __init__(self, observation: Mapping[str, ArraySpec], action: ActionSpec, config: ModelConfig) -> None:
        super().__init__()
        self.distribution = ActionDistribution(action, squash=config.squash_actions)
        hidden = {CENTRAL_VIEW} if config.observe_task else {CENTRAL_VIEW, TASK}
        own = {name: spec for name, spec in observation.items() if name not in hidden}
        seen = observation if config.central_value else own
        tasks = observation[TASK].size if TASK in observation else 1
        self.normaliser: ObservationNormaliser | None = None
        if config.normalise_observations:
            self.normaliser = ObservationNormaliser(
                seen, images=config.normalise_images, clip=config.observation_clip, tasks=tasks
            )
        self.return_normaliser = RunningMeanStd(()) if config.normalise_returns is True else None
        # What an encoder was built for: a user's may take all entries that it is given.
        self._own, self._seen = (None if part == observation else tuple(part) for part in (own, seen))
        self.encoder, width = make_encoder(own, action, config)
        self.critic_encoder, critic_width = None, width
        if not config.shares_encoder(own):
            self.critic_encoder, critic_width = make_encoder(seen, action, config)
        self.core: RecurrentCore | None = None
        if config.core != "none":
            self.core = make_core(config.core, width, config.core_size, config.init)
            width = self.core.output_size
        self.state_size = self.core.state_size if self.core is not None else 0
        self.trunk, trunk_width = _trunk(width, config)
        self.critic_trunk, critic_trunk_width = None, trunk_width
        if self.critic_encoder is not None:
            self.critic_trunk, critic_trunk_width = _trunk(critic_width, config)
        outputs = tasks if config.normalise_returns == "popart" else 1
        self.heads = _Heads(trunk_width, critic_trunk_width, self.distribution, config, tasks=outputs)
        self._has_tasks = outputs > 1
        self.set_channels_last(True)

    def forward(
        self,
        observation: Mapping[str, Tensor],
        rnn_state: Tensor | None = None,
        reset: Tensor | None = None,
    ) -> ActorCriticOutput:
        """Run one step.

        Args:
            observation: Name -> ``[N, ...]``.
            rnn_state: float32 ``[N, S]``; only with a core. None means zeros.
            reset: bool ``[N]``: rows whose state is zeroed first; None resets none.
        """
        features, critic = self._encode(observation)
        if self.core is not None:
            if rnn_state is not None and reset is not None:
                rnn_state = zero_state(rnn_state, reset)
            rnn_state = state_for(features, rnn_state, self.state_size)
            features, rnn_state = self.core.step(features, rnn_state)
        params, value = self._outputs(features, critic, observation.get(TASK))
        return ActorCriticOutput(params, value, rnn_state)

    def unroll(
        self,
        observation: Mapping[str, Tensor],
        rnn_state: Tensor | None = None,
        reset: Tensor | None = None,
        reset_steps: Sequence[int] = (),
        *,
        encoder_batch: int | None = None,
    ) -> ActorCriticOutput:
        """Run several steps of the same rows.

        Args:
            observation: Name -> ``[T, N, ...]``.
            rnn_state: float32 ``[N, S]`` before step 0; only with a core. None means zeros.
            reset: bool ``[T, N]``; required if ``reset_steps`` is not empty.
            reset_steps: Every t with any ``reset[t]``, ascending, known on the host; see
                :meth:`rollmill.models.cores.RecurrentCore.unroll`. Ignored without a core.
            encoder_batch: Approximate number of observations in one pass through the encoder, so that activations stay
                in a CPU's cache; None encodes all at once. It affects speed only.

        Raises:
            ValueError: ``reset_steps`` without ``reset``, with a core.
        """
        steps, rows = next(iter(observation.values())).shape[:2]
        flat = {name: x.flatten(0, 1) for name, x in observation.items()}
        features, critic = self._encode_in_parts(flat, encoder_batch or steps * rows)
        if self.core is not None:
            x = features.view(steps, rows, -1)
            rnn_state = state_for(x, rnn_state, self.state_size)
            x, rnn_state = self.core.unroll(x, rnn_state, reset, reset_steps)
            features = x.flatten(0, 1)
        params, value = self._outputs(features, critic, flat.get(TASK))
        return ActorCriticOutput(params.view(steps, rows, -1), value.reshape(steps, rows), rnn_state)

    def initial_state(self, rows: int, device: torch.device | str | None = None) -> Tensor | None:
        """Return the state at the first observation of an episode: zeros ``[rows, S]``, or None without a core."""
        return torch.zeros((rows, self.state_size), device=device) if self.core is not None else None

    def update_normaliser(self, observation: Mapping[str, Tensor], valid: Tensor | None = None, **ranks: Sum) -> None:
        """Merge raw observations into the running statistics; a no-op without a normaliser.

        Args:
            observation: Name -> ``[..., *shape]``, at least for :attr:`normalised_entries`.
            valid: bool ``[...]``; False excludes an observation.
            **ranks: See :meth:`rollmill.models.running_moments.RunningMeanStd.update`.
        """
        if self.normaliser is not None:
            self.normaliser.update(observation, valid, **ranks)

    def update_value_normaliser(
        self, return_: Tensor, valid: Tensor | None = None, *, tasks: Tensor | None = None, **ranks: Sum
    ) -> None:
        """Merge returns (in units of the rewards) into the running statistics; a no-op without a normaliser.

        Args:
            return_: ``[n]`` with PopArt, else of any shape.
            valid: See :meth:`rollmill.models.running_moments.RunningMeanStd.update`; None with PopArt.
            tasks: int64 ``[n]``, for PopArt with several tasks.
            **ranks: See :meth:`rollmill.models.running_moments.RunningMeanStd.update`.
        """
        if self.heads.popart is not None:
            assert valid is None
            self.heads.popart.update(return_, tasks if self._has_tasks else None, **ranks)
        elif self.return_normaliser is not None:
            self.return_normaliser.update(return_, valid, **ranks)

    def update_pixel_levels(self, observation: Mapping[str, Tensor]) -> None:
        """Merge raw observations into the brightness used to centre images; see :attr:`centres_pixels`.

        Args:
            observation: Name -> ``[N, ...]``, for every entry.
        """
        with torch.no_grad(), observing_pixel_levels(self):
            self._encode(observation)

    @property
    def centres_pixels(self) -> bool:
        """Whether :meth:`update_pixel_levels` does anything."""
        return bool(centred_layers(self))

    @property
    def normalised_entries(self) -> tuple[str, ...]:
        """Names of the observation's entries that :meth:`update_normaliser` takes."""
        if self.normaliser is None or not self.normaliser.names:
            return ()
        return (*self.normaliser.names, *[TASK] * self.normaliser.has_tasks)

    @property
    def normalises_returns(self) -> bool:
        """Whether :meth:`update_value_normaliser` does anything."""
        return self.return_normaliser is not None or self.heads.popart is not None

    def return_scales(self) -> NDArray[np.float32] | None:
        """With PopArt, the deviation of each task's returns, float32 ``[tasks]``; else None. Waits for the device."""
        popart = self.heads.popart
        return None if popart is None else popart.scale.cpu().numpy().copy()

    def value_scale(self, observation: Mapping[str, Tensor], value: Tensor) -> Tensor | None:
        """Return what errors of values are multiplied with in a loss, in the shape of ``value``.

        With PopArt, values are in the units of the rewards, and a task with large ones would outweigh the others.

        Args:
            observation: Name -> ``[N, *shape]``.
            value: ``[N]`` or ``[n, ...]``, the network's values of these observations, or of the first ``n``.

        Returns:
            None where values are in normalised units, or are not normalised.
        """
        if self.heads.popart is None:
            return None
        return self.heads.popart.precision(self.tasks(observation, value), value)

    def tasks(self, observation: Mapping[str, Tensor], value: Tensor) -> Tensor | None:
        """Return the tasks of values, one-hot, ``[..., tasks]``; None without PopArt of several tasks.

        Args:
            observation: As for :meth:`value_scale`.
            value: Likewise.
        """
        return observation[TASK][: len(value)] if self._has_tasks else None

    def value_moments(self) -> tuple[float, float]:
        """``(mean, std)`` used to normalise returns, (0, 1) without a normaliser. Waits for the device."""
        if self.return_normaliser is None:
            return 0.0, 1.0
        return self.return_normaliser.shift.item(), 1.0 / self.return_normaliser.scale.item()

    def denormalise_value(self, value: Tensor) -> Tensor:
        """Convert values from the network's units to the rewards' units."""
        return value if self.return_normaliser is None else self.return_normaliser.denormalise(value)

    def normalise_value(self, return_: Tensor) -> Tensor:
        """Convert returns from the rewards' units to the network's units."""
        return return_ if self.return_normaliser is None else self.return_normaliser.normalise(return_)

    def set_channels_last(self, enabled: bool) -> None:
        """Keep images and convolution weights in channels_last memory (the default) or channels-first."""
        set_channels_last(self, enabled)

    def _encode(self, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Features ``[N, F]`` of the actor, and of the critic if it has its own encoder."""
        if self.normaliser is not None:
            observation = self.normaliser(observation)
        features = self.encoder(_entries(observation, self._own))
        if self.critic_encoder is None:
            return features, None
        return features, self.critic_encoder(_entries(observation, self._seen))

    def _encode_in_parts(self, observation: Mapping[str, Tensor], size: int) -> tuple[Tensor, Tensor | None]:
        """As :meth:`_encode`, in parts of at most ``size`` observations."""
        count = next(iter(observation.values())).shape[0]
        parts = -(-count // size)
        if parts <= 1:
            return self._encode(observation)
        cut = {name: x.tensor_split(parts) for name, x in observation.items()}
        encoded = [self._encode({name: x[i] for name, x in cut.items()}) for i in range(parts)]
        critics = [critic for _, critic in encoded if critic is not None]
        return torch.cat([features for features, _ in encoded]), torch.cat(critics) if critics else None

    def _outputs(self, features: Tensor, critic: Tensor | None, task: Tensor | None) -> tuple[Tensor, Tensor]:
        task = task if self._has_tasks else None
        given = [features] if critic is None else [features, critic]
        if task is None:
            return in_full_precision(self._heads, *given)
        return in_full_precision(partial(self._heads_of_task, critic is not None), *given, task)

    def _heads_of_task(self, has_critic: bool, *given: Tensor) -> tuple[Tensor, Tensor]:
        features, *rest = given
        return self._heads(features, rest[0] if has_critic else None, rest[-1])

    def _heads(
        self, features: Tensor, critic: Tensor | None = None, task: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        actor = self.trunk(features)
        if critic is None:
            critic = actor
        else:
            assert self.critic_trunk is not None
            critic = self.critic_trunk(critic)
        params, value = self.heads(actor, critic, task)
        return params, value


def is_of_critic(parameter: str) -> bool:
    """Whether a name in the ``state_dict`` belongs to the critic alone."""
    return any(part in f".{parameter}" for part in (".critic_encoder.", ".critic_trunk.", ".heads.value."))


class _Heads(nn.Module):
    """Linear heads: ``(actor [N, F], critic [N, G]) -> (params [N, P], value [N])``."""

    def __init__(
        self, width: int, critic_width: int, distribution: ActionDistribution, config: ModelConfig, *, tasks: int
    ) -> None:
        super().__init__()
        self.num_logits = distribution.num_logits
        self.num_continuous = distribution.num_continuous
        learns_vector = distribution.num_continuous > 0 and not config.state_dependent_std
        outputs = distribution.params_size - (distribution.num_continuous if learns_vector else 0)
        self.policy = initialise_dense(nn.Linear(width, outputs), config.init, gain=0.01)
        value = initialise_dense(nn.Linear(critic_width, tasks), config.init, gain=1.0)
        self.value: nn.Module = PopArt(value) if config.normalise_returns == "popart" else value
        self.log_std = (
            nn.Parameter(torch.full((distribution.num_continuous,), config.initial_log_std)) if learns_vector else None
        )
        self.log_std_bounds = config.log_std_bounds
        if distribution.num_continuous > 0 and not learns_vector:
            with torch.no_grad():
                self.policy.bias[-distribution.num_continuous :] = config.initial_log_std

    @property
    def popart(self) -> PopArt | None:
        return self.value if isinstance(self.value, PopArt) else None

    def forward(self, actor: Tensor, critic: Tensor, task: Tensor | None = None) -> tuple[Tensor, Tensor]:
        params = self._params(self.policy(actor))
        if self.popart is not None:
            return params, self.popart(critic, task)
        return params, self.value(critic).squeeze(-1)

    def _params(self, outputs: Tensor) -> Tensor:
        if self.num_continuous == 0:
            return outputs
        if self.log_std is not None:
            return torch.cat([outputs, self.log_std.expand(*outputs.shape[:-1], -1)], -1)
        log_std = outputs[..., -self.num_continuous :].clamp(*self.log_std_bounds)
        return torch.cat([outputs[..., : -self.num_continuous], log_std], -1)


def _trunk(width: int, config: ModelConfig) -> tuple[nn.Sequential, int]:
    layers: list[nn.Module] = []
    published: Activation = "tanh" if config.encoder == "mlp" else "relu"
    for size in config.head_sizes:
        layers += [
            initialise_dense(Dense(width, size), config.init),
            activation_module(config.activation, published),
        ]
        width = size
    return nn.Sequential(*layers), width

"""Networks that evaluate every choice of every categorical head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from rollmill.models.config import ModelConfig
from rollmill.models.convolutions import set_channels_last
from rollmill.models.cores import RecurrentCore, make_core, state_for, zero_state
from rollmill.models.mlp import MLP
from rollmill.models.observation import make_encoder
from rollmill.models.off_policy import is_plain_vector, make_input_encoder
from rollmill.models.precision import in_full_precision
from rollmill.specs import ActionSpec, ArraySpec

FORBIDDEN = -1.0e30
"""Value of a forbidden choice: below every other value, and finite, so that 0 times it is 0."""


def dueling_values(value: Tensor, advantage: Tensor, mean_advantage: Tensor) -> Tensor:
    """``Q(x, a) = V(x) + A(x, a) - mean_a' A(x, a')`` (Wang et al. 2016, arXiv:1511.06581, equation 9).

    Args:
        value: ``[N, 1, 1]``.
        advantage: ``[N, K, n]``.
        mean_advantage: ``[N, K, 1]``, over existing choices.

    Returns:
        ``[N, K, n]``.
    """
    return advantage + (value - mean_advantage)


class Branches(nn.Module):
    """The choices of K categorical heads as ``[N, K, n]``, with n the largest number of choices.

    Heads with fewer choices are padded with choices that are never allowed.

    Args:
        sizes: Choices of each head.
    """

    index: Tensor
    exists: Tensor

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.sizes = sizes
        self.heads, self.most = len(sizes), max(sizes)
        self.is_regular = len(set(sizes)) == 1
        # By NumPy: on the meta device, torch's cumsum imports its compiler.
        offsets, choice = np.cumsum((0, *sizes[:-1]))[:, None], np.arange(self.most)
        exists = choice < np.array(sizes)[:, None]
        self.register_buffer("exists", torch.tensor(exists), persistent=False)
        index = np.where(exists, offsets + choice, offsets).ravel()
        self.register_buffer("index", torch.tensor(index), persistent=False)

    def split(self, flat: Tensor) -> Tensor:
        """Reshape ``[..., sum(sizes)]``, head by head, to ``[..., K, n]``; padding repeats the first choice."""
        if not self.is_regular:
            flat = flat.index_select(-1, self.index)
        return flat.view(*flat.shape[:-1], self.heads, self.most)

    def allowed(self, mask: Tensor | None, rows: int) -> Tensor:
        """Convert a mask ``[N, sum(sizes)]`` to bool ``[N, K, n]``; a fully forbidden head is unconstrained."""
        if mask is None:
            return self.exists.expand(rows, -1, -1)
        allowed = self.split(mask.to(torch.bool))
        if not self.is_regular:
            allowed = allowed & self.exists
        return allowed | (self.exists & ~allowed.any(-1, keepdim=True))

    def restrict(self, scores: Tensor, mask: Tensor | None, forbidden: float = FORBIDDEN) -> Tensor:
        """Set ``scores [N, K, n]`` to ``forbidden`` where a choice is not allowed or does not exist."""
        if mask is None and self.is_regular:
            return scores
        return torch.where(self.allowed(mask, scores.shape[0]), scores, forbidden)

    def mean(self, x: Tensor) -> Tensor:
        """Mean over each head's choices, ``[N, K, n]`` to ``[N, K, 1]``."""
        if self.is_regular:
            return x.mean(-1, keepdim=True)
        return torch.where(self.exists, x, 0.0).sum(-1, keepdim=True) / self.exists.sum(-1, keepdim=True)


class QNetwork(nn.Module):
    """Q(x, a) of every choice: encoder, optional core, hidden layers ``head_sizes``, one linear head for all choices.

    With several categorical heads (``MultiDiscrete``) each head has its own values (Tavakoli et al. 2018,
    https://arxiv.org/abs/1711.08946). A dueling network has two streams of hidden layers, for the state's value and for
    the advantages (Wang et al. 2016); all heads share the value.

    The encoder respects autocast (for a plain vector: ``mlp_sizes`` and ``head_sizes``); later layers compute in
    float32.

    Args:
        observation: Name -> spec.
        action: Categorical heads only.
        config: Result of :func:`rollmill.models.off_policy.off_policy_model`.
        dueling: Whether there are two streams.

    Attributes:
        state_size: Width of the recurrent state; 0 without a core. A network with a core has :meth:`step` and
            :meth:`unroll`, one without has :meth:`forward`.
    """

    def __init__(
        self, observation: Mapping[str, ArraySpec], action: ActionSpec, config: ModelConfig, *, dueling: bool = False
    ) -> None:
        super().__init__()
        self.branches = Branches(action.categorical_sizes)
        # One perceptron for all layers is faster than separate layers.
        self.is_one_mlp = not dueling and config.core == "none" and is_plain_vector(observation, config)
        sizes = config.head_sizes
        if self.is_one_mlp:
            self.encoder, width = make_input_encoder(observation, action, config)
            sizes = (*config.mlp_sizes, *sizes)
        else:
            self.encoder, width = make_encoder(observation, action, config)
        self.core: RecurrentCore | None = None
        if config.core != "none":
            self.core = make_core(config.core, width, config.core_size, config.init)
            width = self.core.output_size
        self.state_size = self.core.state_size if self.core is not None else 0
        self.advantage = MLP(width, action.mask_size, config, sizes=sizes)
        self.value = MLP(width, 1, config, sizes=sizes) if dueling else None
        set_channels_last(self, True)

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        """Map name -> ``[N, ...]`` to float32 ``[N, K, n]``; see :class:`Branches`. Not for networks with a core."""
        assert self.core is None, "a network with a core has step() and unroll()"
        features = self.encoder(observation)
        return self._heads(features) if self.is_one_mlp else in_full_precision(self._heads, features)

    def step(
        self, observation: Mapping[str, Tensor], state: Tensor | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Run one step with a core.

        Args:
            observation: Name -> ``[N, ...]``.
            state: float32 ``[N, S]``; None means zeros.
            reset: bool ``[N]``: rows whose state is zeroed first; None resets none.

        Returns:
            Values ``[N, K, n]`` and the next state ``[N, S]``.
        """
        assert self.core is not None
        features = self.encoder(observation)
        if state is not None and reset is not None:
            state = zero_state(state, reset)
        features, state = self.core.step(features, state_for(features, state, self.state_size))
        return in_full_precision(self._heads, features), state

    def unroll(
        self,
        observation: Mapping[str, Tensor],
        state: Tensor | None,
        reset: Tensor | None,
        reset_steps: Sequence[int],
    ) -> tuple[Tensor, Tensor]:
        """Run several steps of the same rows with a core.

        Args:
            observation: Name -> ``[T, N, ...]``.
            state: float32 ``[N, S]`` before step 0; None means zeros.
            reset: bool ``[T, N]``; required if ``reset_steps`` is not empty.
            reset_steps: Every t with any ``reset[t]``, ascending; see
                :meth:`rollmill.models.cores.RecurrentCore.unroll`.

        Returns:
            Values ``[T, N, K, n]`` and the state ``[N, S]`` after the last step.
        """
        assert self.core is not None
        steps, rows = next(iter(observation.values())).shape[:2]
        features = self.encoder({name: x.flatten(0, 1) for name, x in observation.items()})
        x = features.view(steps, rows, -1)
        x, state = self.core.unroll(x, state_for(x, state, self.state_size), reset, reset_steps)
        q = in_full_precision(self._heads, x.flatten(0, 1))
        return q.view(steps, rows, *q.shape[1:]), state

    def _heads(self, features: Tensor) -> Tensor:
        advantage = self.branches.split(self.advantage(features))
        if self.value is None:
            return advantage
        return dueling_values(self.value(features).unsqueeze(-1), advantage, self.branches.mean(advantage))

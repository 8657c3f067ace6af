"""Action distributions: pure tensor functions on one flat parameter array.

``params [..., P]`` is laid out as ``[logits of head 0 | logits of head 1 | ... | means | log standard deviations]``, so
one array holds any combination of heads. Everything is computed in float32, whatever the dtype of ``params``; no
function waits for the device.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from rollmill.models.errors import UnfitModelError
from rollmill.models.precision import wide
from rollmill.specs import ActionSpec, BoxHead

# Not -inf: exp(_FORBIDDEN) is exactly 0 in float32, and 0 * _FORBIDDEN is 0 where 0 * -inf would be NaN. It is below
# any logit, so that a network that diverges is not reported as an environment that refuses an action.
_FORBIDDEN = -1.0e38
# A random number of 0 has logarithm -inf, which would let a forbidden action tie with the allowed ones.
_SMALLEST_UNIFORM = 2.0**-25
_SMALLEST_EXPONENTIAL = 1.0e-30
_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)
_LOG_2 = math.log(2.0)


class Sample(NamedTuple):
    """Sampled actions and their log-probability.

    Attributes:
        discrete: int32 ``[..., Kd]``; None without categorical heads.
        continuous: float32 ``[..., Kc]``; None without real heads. With squashing: before tanh.
        log_prob: float32 ``[...]``, summed over heads.
    """

    discrete: Tensor | None
    continuous: Tensor | None
    log_prob: Tensor


class Evaluation(NamedTuple):
    """``log_prob`` and ``entropy`` of given actions, float32 ``[...]``."""

    log_prob: Tensor
    entropy: Tensor


class ActionDistribution:
    """The joint distribution of independent categorical and Gaussian heads.

    Masks (``[..., mask_size]``, bool or uint8, non-zero is allowed) apply to the categorical heads: a forbidden choice
    has probability exactly 0, is never sampled and gets no gradient. A head whose mask forbids everything is
    unconstrained (environments give such masks for rows that wait for a reset).

    With ``squash`` the *stored* action is the Gaussian value u before squashing, because atanh of a stored tanh(u) is
    inexact near the bounds. The environment's process maps it: ``low + (high - low) * (tanh(u) + 1) / 2``. ``log_prob``
    is the density of tanh(u) in (-1, 1)^K. Without ``squash`` it clips u to the bounds.

    Args:
        spec: The action of one row.
        squash: Whether real heads are squashed by tanh.

    Raises:
        UnfitModelError: ``squash`` with a head whose bounds are not finite.
    """

    def __init__(self, spec: ActionSpec, *, squash: bool = False) -> None:
        if squash:
            for index, head in enumerate(spec.heads):
                if isinstance(head, BoxHead) and not head.is_bounded:
                    raise UnfitModelError(
                        f"squash_actions needs finite bounds, but action head {index} has low={head.low}, "
                        f"high={head.high}; rescale the environment's action space or set squash_actions=False"
                    )
        self.spec = spec
        self.squash = squash and spec.num_continuous > 0
        # Neighbouring heads of one size share their operations: (heads, choices of each).
        self._blocks = [(len(list(heads)), size) for size, heads in itertools.groupby(spec.categorical_sizes)]
        self.num_discrete = spec.num_discrete
        self.num_continuous = spec.num_continuous
        self.num_logits = spec.mask_size
        self.params_size = self.num_logits + 2 * self.num_continuous
        self.noise_size = self.num_logits + self.num_continuous

    def sample_with_log_prob(
        self,
        params: Tensor,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        *,
        uniform: Tensor | None = None,
    ) -> Sample:
        """Sample actions and compute their log-probability in the same pass.

        Args:
            params: ``[..., P]``.
            mask: ``[..., mask_size]`` or None.
            generator: Of the params' device; None is torch's global one.
            uniform: float32 ``[..., noise_size]`` in [0, 1): random numbers to use instead of a generator; actions then
                depend on the arguments only, whatever batch a row is in.
        """
        logits, mean, log_std = self._split(params, mask)
        discrete, continuous = self._draw(logits, mean, log_std, generator, uniform)
        return Sample(discrete, continuous, self._log_prob(logits, mean, log_std, discrete, continuous))

    def sample_from_noise(
        self, params: Tensor, mask: Tensor | None, uniform: Tensor | None, normal: Tensor | None
    ) -> Sample:
        """Sample actions as a pure function of random numbers.

        Args:
            params: ``[..., P]``.
            mask: ``[..., mask_size]`` or None.
            uniform: float32 ``[..., mask_size]`` in [0, 1), one for each choice; needed with categorical heads.
            normal: float32 ``[..., num_continuous]``, standard normal; needed with real heads.
        """
        logits, mean, log_std = self._split(params, mask)
        exponential = None if uniform is None else exponential_of(uniform)
        discrete, continuous = self._apply(logits, mean, log_std, exponential, normal)
        return Sample(discrete, continuous, self._log_prob(logits, mean, log_std, discrete, continuous))

    def mode(self, params: Tensor, mask: Tensor | None = None) -> tuple[Tensor | None, Tensor | None]:
        """The most probable choices and the means, as ``(discrete, continuous)``."""
        logits, mean, _ = self._split(params, mask)
        discrete = self._argmax(logits) if logits is not None else None
        return discrete, mean

    def log_prob(
        self, params: Tensor, discrete: Tensor | None, continuous: Tensor | None, mask: Tensor | None = None
    ) -> Tensor:
        """Log-probability (density for real heads) of given actions, float32 ``[...]``."""
        logits, mean, log_std = self._split(params, mask)
        return self._log_prob(logits, mean, log_std, discrete, continuous)

    def evaluate(
        self, params: Tensor, discrete: Tensor | None, continuous: Tensor | None, mask: Tensor | None = None
    ) -> Evaluation:
        """Log-probability and entropy (in nats) of given actions, with one log-softmax for both.

        The entropy of squashed heads is that of the Gaussian before squashing, as in other implementations of PPO: a
        squashed Gaussian's has no closed form.
        """
        logits, mean, log_std = self._split(params, mask)
        log_probs = self._log_softmaxes(logits)
        total = self._gaussian_log_prob(mean, log_std, continuous)
        if discrete is not None:
            total = self._add_choices(total, log_probs, discrete)
        assert total is not None
        return Evaluation(total, self._entropy(log_probs, log_std))

    def _split(self, params: Tensor, mask: Tensor | None) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        params = wide(params)
        if self.num_continuous == 0:
            return self._masked(params, mask), None, None
        n, k = self.num_logits, self.num_continuous
        logits = self._masked(params[..., :n], mask) if n else None
        return logits, params[..., n : n + k], params[..., n + k :]

    def _masked(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return logits
        allowed = mask.to(torch.bool)
        if self.num_discrete == 1:
            allowed = allowed | ~allowed.any(-1, keepdim=True)
        else:
            blocks = [block | ~block.any(-1, keepdim=True) for block in self._by_head(allowed)]
            allowed = torch.cat([block.reshape(*allowed.shape[:-1], -1) for block in blocks], -1)
        return torch.where(allowed, logits, _FORBIDDEN)

    def _argmax(self, scores: Tensor) -> Tensor:
        if self.num_discrete == 1:
            return scores.argmax(-1, keepdim=True).to(torch.int32)
        found = [
            block.argmax(-1, keepdim=heads == 1)
            for block, (heads, _) in zip(self._by_head(scores), self._blocks, strict=True)
        ]
        return torch.cat(found, -1).to(torch.int32)

    def _by_head(self, flat: Tensor) -> list[Tensor]:
        """From ``[..., sum of all choices]`` to ``[..., heads, choices]`` of each block; no axis for a single head."""
        if self.num_discrete == 1:
            return [flat]
        blocks = torch.split(flat, [heads * size for heads, size in self._blocks], -1)
        return [
            block if heads == 1 else block.view(*block.shape[:-1], heads, size)
            for block, (heads, size) in zip(blocks, self._blocks, strict=True)
        ]

    def _add_choices(self, total: Tensor | None, log_probs: Sequence[Tensor], discrete: Tensor) -> Tensor | None:
        """Add the log-probabilities of choices to ``total``."""
        # log_softmax is one kernel; gather - logsumexp would be eight, which dominates small batches.
        if self.num_discrete == 1:
            return _add(total, log_probs[0].gather(-1, discrete.long()).squeeze(-1))
        choices = torch.split(discrete.long(), [heads for heads, _ in self._blocks], -1)
        for block, choice, (heads, _) in zip(log_probs, choices, self._blocks, strict=True):
            if heads == 1:
                total = _add(total, block.gather(-1, choice).squeeze(-1))
            else:
                total = _add(total, block.gather(-1, choice.unsqueeze(-1)).sum((-2, -1)))
        return total

    def _draw(
        self,
        logits: Tensor | None,
        mean: Tensor | None,
        log_std: Tensor | None,
        generator: torch.Generator | None,
        uniform: Tensor | None,
    ) -> tuple[Tensor | None, Tensor | None]:
        exponential = normal = None
        if logits is not None:
            if uniform is None:
                exponential = torch.empty(logits.shape, device=logits.device).exponential_(generator=generator)
            else:
                exponential = exponential_of(uniform[..., : self.num_logits])
        if mean is not None:
            if uniform is None:
                normal = torch.randn(mean.shape, generator=generator, device=mean.device)
            else:
                normal = torch.special.ndtri(uniform[..., self.num_logits :].clamp_min(_SMALLEST_UNIFORM))
        return self._apply(logits, mean, log_std, exponential, normal)

    def _apply(
        self,
        logits: Tensor | None,
        mean: Tensor | None,
        log_std: Tensor | None,
        exponential: Tensor | None,
        normal: Tensor | None,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Choose by random numbers, of which the exponential ones are overwritten."""
        discrete = continuous = None
        if logits is not None:
            assert exponential is not None
            discrete = self._argmax(perturbed(logits.detach(), exponential))
        if mean is not None:
            assert log_std is not None
            assert normal is not None
            continuous = mean + log_std.exp() * normal
        return discrete, continuous

    def _log_prob(
        self,
        logits: Tensor | None,
        mean: Tensor | None,
        log_std: Tensor | None,
        discrete: Tensor | None,
        continuous: Tensor | None,
    ) -> Tensor:
        total = self._gaussian_log_prob(mean, log_std, continuous)
        if logits is not None:
            assert discrete is not None
            total = self._add_choices(total, self._log_softmaxes(logits), discrete)
        assert total is not None
        return total

    def _gaussian_log_prob(
        self, mean: Tensor | None, log_std: Tensor | None, continuous: Tensor | None
    ) -> Tensor | None:
        if mean is None:
            return None
        assert log_std is not None
        assert continuous is not None
        standardised = (continuous - mean) * (-log_std).exp()
        density = -0.5 * standardised.square() - log_std - _HALF_LOG_TAU
        if self.squash:
            # log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u))avoids cancellation for large |u|.
            density = density - 2.0 * (_LOG_2 - continuous - functional.softplus(-2.0 * continuous))
        return density.sum(-1)

    def _log_softmaxes(self, logits: Tensor | None) -> tuple[Tensor, ...]:
        if logits is None:
            return ()
        return tuple(block.log_softmax(-1) for block in self._by_head(logits))

    def _entropy(self, log_probs: tuple[Tensor, ...], log_std: Tensor | None) -> Tensor:
        total: Tensor | None = None
        for block, (heads, _) in zip(log_probs, self._blocks, strict=True):
            total = _add(total, -(block.exp() * block).sum(-1 if heads == 1 else (-2, -1)))
        if log_std is not None:
            total = _add(total, (log_std + (_HALF_LOG_TAU + 0.5)).sum(-1))
        assert total is not None
        return total


def exponential_of(uniform: Tensor) -> Tensor:
    """Exponentially distributed numbers, of uniform ones in [0, 1)."""
    return uniform.clamp_min(_SMALLEST_UNIFORM).log_().neg_()


def perturbed(logits: Tensor, exponential: Tensor) -> Tensor:
    """Logits with Gumbel noise of exponential numbers, which are overwritten.

    argmax(logits - log E), E exponential, has the categorical distribution. Unlike the inverse of a parallel prefix sum
    it can never round into a forbidden choice.
    """
    return logits - exponential.clamp_min_(_SMALLEST_EXPONENTIAL).log_()


def gumbel_of(uniform: Tensor) -> Tensor:
    """Gumbel noise of uniform numbers in [0, 1): the argmax of logits plus it is a sample of the distribution."""
    return exponential_of(uniform).clamp_min_(_SMALLEST_EXPONENTIAL).log_().neg_()


def _add(total: Tensor | None, term: Tensor) -> Tensor:
    return term if total is None else total + term

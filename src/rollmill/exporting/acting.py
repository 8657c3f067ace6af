"""How algorithms act, as pure functions of observations, states and random numbers, and without exploring.

``Algorithm.act_with_state`` draws random numbers itself, which a file cannot do alike on every runtime. Here they are
arguments: uniform ones for choices, normal ones for real numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from rollmill.algorithms.base import Algorithm
from rollmill.algorithms.discrete_sac import DiscreteSAC
from rollmill.algorithms.dqn import DQN
from rollmill.algorithms.on_policy import OnPolicyAlgorithm
from rollmill.algorithms.q_learning import QLearning
from rollmill.algorithms.recurrent_dqn import RecurrentDQN
from rollmill.algorithms.sac import SAC
from rollmill.losses.dqn import unscale
from rollmill.models.actors import squashed_gaussian
from rollmill.models.distributions import gumbel_of
from rollmill.models.precision import wide


class Given(NamedTuple):
    """What an algorithm acts on, for N rows.

    Attributes:
        observation: Name -> ``[N, ...]``, in the format of slots.
        mask: bool ``[N, mask_size]``; None allows all choices.
        state: float32 ``[N, S]``; None without a recurrent state.
        reset: bool ``[N]``: rows whose state is zeroed first; None without a recurrent state.
        uniform: float32 ``[N, M]`` in [0, 1), one for each choice; None takes the best action.
        normal: float32 ``[N, C]``, standard normal, one for each real number; likewise.
    """

    observation: Mapping[str, Tensor]
    mask: Tensor | None = None
    state: Tensor | None = None
    reset: Tensor | None = None
    uniform: Tensor | None = None
    normal: Tensor | None = None


class Acted(NamedTuple):
    """What an algorithm did.

    Attributes:
        discrete: Integers ``[N, Kd]``; None without categorical heads.
        continuous: float32 ``[N, Kc]``; None without real heads.
        state: The next state, ``[N, S]``; None without a recurrent state.
        log_prob: ``[N]``; None where it is not known.
        value: ``[N]``; likewise.
    """

    discrete: Tensor | None
    continuous: Tensor | None
    state: Tensor | None = None
    log_prob: Tensor | None = None
    value: Tensor | None = None


class Acting:
    """The best known actions of any algorithm, by ``act_with_state``.

    Args:
        algorithm: The algorithm.

    Attributes:
        num_uniform: Columns of the uniform noise that sampling takes; 0 without.
        num_normal: Columns of the normal noise.
        gives_log_prob: Whether the log-probability of an action is known.
        gives_value: Whether a value is.
    """

    num_uniform: int = 0
    num_normal: int = 0
    gives_log_prob: bool = False
    gives_value: bool = False

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm

    @property
    def can_sample(self) -> bool:
        """Whether the policy has probabilities to sample from."""
        return bool(self.num_uniform or self.num_normal)

    def __call__(self, given: Given) -> Acted:
        """Act."""
        action, state = self.algorithm.act_with_state(
            given.observation, given.state, given.reset, given.mask, explore=None
        )
        return Acted(action.discrete, action.continuous, state)

    def noise(self, rows: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the random numbers with which sampling gives what ``act_with_state`` would draw.

        Args:
            rows: N.
            generator: In the state in which ``act_with_state`` would find it.

        Returns:
            ``uniform [N, M]`` and ``normal [N, C]``, those that sampling takes.
        """
        raise NotImplementedError


class _OnPolicy(Acting):
    """The network's distribution; its value in units of the rewards."""

    algorithm: OnPolicyAlgorithm
    gives_log_prob = True

    def __init__(self, algorithm: OnPolicyAlgorithm, *, gives_value: bool) -> None:
        super().__init__(algorithm)
        distribution = algorithm.acting.distribution
        self.num_uniform, self.num_normal = distribution.num_logits, distribution.num_continuous
        self.gives_value = gives_value

    def __call__(self, given: Given) -> Acted:
        network = self.algorithm.acting
        output = network(given.observation, given.state, given.reset)
        params, distribution = wide(output.params), network.distribution
        value = wide(network.denormalise_value(output.value)) if self.gives_value else None
        if given.uniform is None and given.normal is None:
            discrete, continuous = distribution.mode(params, given.mask)
            log_prob = distribution.log_prob(params, discrete, continuous, given.mask)
        else:
            sample = distribution.sample_from_noise(params, given.mask, given.uniform, given.normal)
            discrete, continuous, log_prob = sample
        return Acted(discrete, continuous, output.rnn_state, log_prob, value)

    def noise(self, rows: int, generator: torch.Generator) -> dict[str, Tensor]:
        found = {}
        if self.num_uniform:
            found["uniform"] = _uniform_of(torch.empty(rows, self.num_uniform).exponential_(generator=generator))
        if self.num_normal:
            found["normal"] = torch.randn(rows, self.num_normal, generator=generator)
        return found


class _SAC(Acting):
    """A squashed Gaussian; the log-density of a sample is that in [-1, 1]."""

    algorithm: SAC

    def __init__(self, algorithm: SAC) -> None:
        super().__init__(algorithm)
        self.num_normal = algorithm.action_spec.num_continuous

    def __call__(self, given: Given) -> Acted:
        params = self.algorithm.acting(given.observation)
        if given.normal is None:
            return Acted(None, params.chunk(2, -1)[0].tanh())
        return Acted(None, squashed_gaussian(params, given.normal, self.algorithm.log_std_bounds).action)

    def noise(self, rows: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {"normal": torch.randn(rows, self.num_normal, generator=generator)}


class _DiscreteSAC(Acting):
    """Independent categorical policies."""

    algorithm: DiscreteSAC
    gives_log_prob = True

    def __init__(self, algorithm: DiscreteSAC) -> None:
        super().__init__(algorithm)
        self.num_uniform = sum(algorithm.branches.sizes)

    def __call__(self, given: Given) -> Acted:
        branches = self.algorithm.branches
        logits = branches.restrict(branches.split(self.algorithm.acting(given.observation)), given.mask)
        scores = logits
        if given.uniform is not None:
            scores = logits + branches.split(gumbel_of(given.uniform))
        choice = scores.argmax(-1)
        log_prob = logits.log_softmax(-1).gather(-1, choice.unsqueeze(-1)).squeeze(-1).sum(-1)
        return Acted(choice, None, log_prob=log_prob)

    def noise(self, rows: int, generator: torch.Generator) -> dict[str, Tensor]:
        branches = self.algorithm.branches
        drawn = torch.empty(rows, branches.heads, branches.most).exponential_(generator=generator)
        return {"uniform": _uniform_of(drawn[:, branches.exists])}


class _QLearning(Acting):
    """The choices of the largest values; the value is theirs, a mean over several heads."""

    algorithm: QLearning
    gives_value = True

    def __call__(self, given: Given) -> Acted:
        network, state = self.algorithm.acting, None
        if network.state_size:
            q, state = network.step(given.observation, given.state, given.reset)
        else:
            q = network(given.observation)
        choice = network.branches.restrict(q, given.mask).argmax(-1)
        value = q.gather(-1, choice.unsqueeze(-1)).squeeze(-1)
        if self.algorithm.config.value_rescaling:
            value = unscale(value)
        return Acted(choice, None, state, value=value.mean(-1))


def acting_of(algorithm: Algorithm, *, lacks_critic: bool = False) -> Acting:
    """Return how an algorithm acts.

    A user's algorithm that acts in a way of its own gets the general one, which cannot sample.

    Args:
        algorithm: The algorithm.
        lacks_critic: Whether its critic has no weights, because it sees what all agents observe.
    """
    if isinstance(algorithm, OnPolicyAlgorithm) and _acts_as(algorithm, OnPolicyAlgorithm):
        return _OnPolicy(algorithm, gives_value=not lacks_critic)
    if isinstance(algorithm, SAC) and _acts_as(algorithm, SAC) and algorithm.pink is None:
        return _SAC(algorithm)
    if isinstance(algorithm, DiscreteSAC) and _acts_as(algorithm, DiscreteSAC):
        return _DiscreteSAC(algorithm)
    if isinstance(algorithm, QLearning) and (_acts_as(algorithm, DQN) or _acts_as(algorithm, RecurrentDQN)):
        return _QLearning(algorithm)
    return Acting(algorithm)


def _acts_as(algorithm: Algorithm, kind: type) -> bool:
    """Whether an algorithm inherits everything that acting consists of."""
    names = ("act", "act_with_state", "choose", "_logits", "_sample")
    return all(getattr(type(algorithm), name, None) is getattr(kind, name, None) for name in names)


def _uniform_of(exponential: Tensor) -> Tensor:
    """The uniform numbers whose negative logarithms are these."""
    return torch.exp(-exponential)

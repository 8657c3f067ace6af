"""Recurrent cores with one flat state per row, and resets within an unroll."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rollmill.models.config import Initialisation
from rollmill.models.linear import linear
from rollmill.models.precision import wide
from rollmill.models.unrolls import Resets, unroll_gru, unroll_lstm


class RecurrentCore(nn.Module):
    """A recurrent layer between encoder and heads.

    Computes in float32, because the state accumulates over an episode; on a CPU, only the matrix products of an unroll
    follow autocast. Under autocast, cuDNN's layers would compute in float16 whatever the dtype, where small gradients
    vanish.

    The state of a row is one flat float32 vector (h, or h followed by c), so that slots and policy workers can hold it
    without knowing the core. It is all zeros at the first observation of an episode.

    Attributes:
        output_size: Width of the output features.
        state_size: Width of the flat state.
    """

    output_size: int
    state_size: int

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Run one step: features ``[N, F]`` and state ``[N, S]`` to output ``[N, H]`` and the next state ``[N, S]``."""
        if torch.compiler.is_compiling():
            return self.step_of_operations(x, state)
        x = x.unsqueeze(0)
        output, state = self.run_on_cpu(x, state, (None,)) if x.device.type == "cpu" else self.run(x, state)
        return output[0], state

    def step_of_operations(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Run one step in plain tensor operations, which can be traced and exported; see :meth:`step`."""
        raise NotImplementedError

    def run(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Run several steps without a reset: ``[T, N, F]`` and ``[N, S]`` to ``[T, N, H]`` and ``[N, S]``."""
        raise NotImplementedError

    def run_on_cpu(self, x: Tensor, state: Tensor, resets: Resets) -> tuple[Tensor, Tensor]:
        """Run several steps with resets: ``resets`` as in :func:`rollmill.models.unrolls.unroll_gru`."""
        raise NotImplementedError

    def unroll(
        self, x: Tensor, state: Tensor, reset: Tensor | None, reset_steps: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Run several steps with resets.

        The host that built the batch knows the steps with resets, so nothing waits for the device. On a CPU resets are
        masks within :mod:`rollmill.models.unrolls`; elsewhere time is split at them, and each part is one call of the
        fused kernel.

        Args:
            x: float ``[T, N, F]``.
            state: float32 ``[N, S]``, before ``reset[0]`` is applied.
            reset: bool ``[T, N]``: the row's state is zeroed before x_t is consumed; may be None if nothing resets.
            reset_steps: Every t with any ``reset[t]``, ascending. A step that is not listed does not reset.

        Returns:
            Outputs ``[T, N, H]`` and the state after the last step.

        Raises:
            ValueError: ``reset_steps`` without ``reset``.
        """
        if reset is None:
            if reset_steps:
                raise ValueError(f"reset_steps is {list(reset_steps)} without reset; give reset as bool [T, N]")
            reset = torch.zeros((x.shape[0], x.shape[1]), dtype=torch.bool, device=x.device)
        if x.device.type == "cpu":
            resets: list[Tensor | None] = [None] * x.shape[0]
            for t in reset_steps:
                resets[t] = reset[t].unsqueeze(-1)
            return self.run_on_cpu(x, state, tuple(resets))
        return self.run_in_parts(x, state, reset, reset_steps)

    def cast_by_autocast(self) -> tuple[nn.Parameter, ...]:
        """Parameters read only by products under autocast, so that casting them in advance changes nothing."""
        return ()

    def run_in_parts(
        self, x: Tensor, state: Tensor, reset: Tensor, reset_steps: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Unroll with time split at the steps with resets."""
        outputs = []
        begin = 0
        for t in reset_steps:
            if t > begin:
                output, state = self.run(x[begin:t], state)
                outputs.append(output)
                begin = t
            state = zero_state(state, reset[t])
        output, state = self.run(x[begin:], state)
        if not outputs:
            return output, state
        return torch.cat([*outputs, output]), state


class GRUCore(RecurrentCore):
    """``nn.GRU`` with one layer (Cho et al. 2014, https://arxiv.org/abs/1406.1078). The state is h."""

    def __init__(self, input_size: int, size: int, init: Initialisation) -> None:
        super().__init__()
        self.output_size = self.state_size = size
        self.layer = nn.GRU(input_size, size)
        _initialise(self.layer, init)

    def step_of_operations(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`RecurrentCore.step_of_operations`."""
        weight_in, weight, bias_in, bias = _weights(self.layer)
        reset, update, new = linear(wide(x), weight_in, bias_in).chunk(3, -1)
        of_reset, of_update, of_new = linear(state, weight, bias).chunk(3, -1)
        new = torch.tanh(new + torch.sigmoid(reset + of_reset) * of_new)
        state = new + torch.sigmoid(update + of_update) * (state - new)
        return state, state

    def run(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`RecurrentCore.run`."""
        with torch.autocast(x.device.type, enabled=False):
            output, last = self.layer(wide(x), state.unsqueeze(0))
        return output, last[0]

    def run_on_cpu(self, x: Tensor, state: Tensor, resets: Resets) -> tuple[Tensor, Tensor]:
        """See :meth:`RecurrentCore.run_on_cpu`."""
        weight_in, weight, bias_in, bias = _weights(self.layer)
        gates = linear(x, weight_in, bias_in)
        return unroll_gru(gates, state, resets, weight.to(gates.dtype), bias)

    def cast_by_autocast(self) -> tuple[nn.Parameter, ...]:
        """See :meth:`RecurrentCore.cast_by_autocast`."""
        return _matrices(self.layer)


class LSTMCore(RecurrentCore):
    """``nn.LSTM`` with one layer (Hochreiter and Schmidhuber 1997). The state is h followed by c."""

    def __init__(self, input_size: int, size: int, init: Initialisation) -> None:
        super().__init__()
        self.output_size = size
        self.state_size = 2 * size
        self.layer = nn.LSTM(input_size, size)
        _initialise(self.layer, init)

    def step_of_operations(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`RecurrentCore.step_of_operations`."""
        h, c = state.chunk(2, -1)
        weight_in, weight, bias_in, bias = _weights(self.layer)
        gates = linear(wide(x), weight_in, bias_in) + linear(h, weight, bias)
        in_, forget, cell, output = gates.chunk(4, -1)
        c = torch.sigmoid(forget) * c + torch.sigmoid(in_) * torch.tanh(cell)
        h = torch.sigmoid(output) * torch.tanh(c)
        return h, torch.cat([h, c], -1)

    def run(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`RecurrentCore.run`."""
        h, c = state.unsqueeze(0).chunk(2, -1)
        with torch.autocast(x.device.type, enabled=False):
            output, (h, c) = self.layer(wide(x), (h.contiguous(), c.contiguous()))
        return output, torch.cat([h[0], c[0]], -1)

    def run_on_cpu(self, x: Tensor, state: Tensor, resets: Resets) -> tuple[Tensor, Tensor]:
        """See :meth:`RecurrentCore.run_on_cpu`."""
        h, c = state.chunk(2, -1)
        weight_in, weight, bias_in, bias = _weights(self.layer)
        gates = linear(x, weight_in, bias_in)
        output, h, c = unroll_lstm(gates, h, c, resets, weight.to(gates.dtype), bias)
        return output, torch.cat([h, c], -1)

    def cast_by_autocast(self) -> tuple[nn.Parameter, ...]:
        """See :meth:`RecurrentCore.cast_by_autocast`."""
        return _matrices(self.layer)


def zero_state(state: Tensor, reset: Tensor) -> Tensor:
    """``state [N, S]`` with the rows of ``reset`` (bool ``[N]``) set to 0, even if they were NaN."""
    return state.masked_fill(reset.unsqueeze(-1), 0.0)


def state_for(features: Tensor, state: Tensor | None, size: int) -> Tensor:
    """A state ``[N, S]`` in the precision of features ``[..., N, F]``; None means zeros."""
    if state is None:
        state = features.new_zeros((features.shape[-2], size), dtype=torch.float32)
    return state.double() if features.dtype == torch.float64 else state


def make_core(kind: str, input_size: int, size: int, init: Initialisation) -> RecurrentCore:
    """Build a core by name.

    Args:
        kind: ``"gru"`` or ``"lstm"``.
        input_size: Width of the encoder's features.
        size: Width of the core.
        init: Initialisation.

    Raises:
        ValueError: An unknown kind.
    """
    if kind == "gru":
        return GRUCore(input_size, size, init)
    if kind == "lstm":
        return LSTMCore(input_size, size, init)
    raise ValueError(f"the core is {kind!r}; allowed: 'gru', 'lstm' (and 'none', which builds no core)")


def _weights(layer: nn.RNNBase) -> tuple[Tensor, ...]:
    return tuple(getattr(layer, f"{name}_l0") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))


def _matrices(layer: nn.RNNBase) -> tuple[nn.Parameter, ...]:
    """Parameters that follow autocast on a CPU; elsewhere the whole layer is float32."""
    if layer.weight_ih_l0.device.type != "cpu":
        return ()
    return tuple(layer.get_parameter(f"{name}_l0") for name in ("weight_ih", "weight_hh", "bias_ih"))


@torch.no_grad()
def _initialise(layer: nn.RNNBase, init: Initialisation) -> None:
    """Orthogonal matrices and zero biases (CleanRL's ppo_atari_lstm), or PyTorch's own.

    The bias of the gate that keeps the state (a GRU's update gate, an LSTM's forget gate) starts at 1, so that an
    untrained core keeps its state for more than a few steps (Gers et al. 2000; Jozefowicz et al. 2015, section 5).
    """
    if init == "torch":
        return
    for name, parameter in layer.named_parameters():
        if "bias" in name:
            nn.init.zeros_(parameter)
        else:
            nn.init.orthogonal_(parameter, 1.0)
    bias: Tensor = layer.get_parameter("bias_hh_l0")
    bias[layer.hidden_size : 2 * layer.hidden_size] = 1.0

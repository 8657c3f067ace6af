"""Optimisers and gradient clipping without a host sync in the minibatch loop.

On CUDA the learning rate is a tensor on the device, so that a captured graph sees every change, and the gradient's norm
and the non-finite flag stay on the device; the host reads the flag once a batch. On a CPU nothing waits, and plain
numbers are fastest.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rollmill.learning import config as settings
from rollmill.learning.config import OptimiserConfig


def _plain(method: Callable[..., Any]) -> Any:
    """Return a method of PyTorch's optimisers as its class defines it.

    PyTorch decorates these methods for code that is compiled, which no optimiser of ours is. The decorators import its
    compiler at the first call: two seconds of CPU time and 70 MB of every program's memory.
    """
    return inspect.unwrap(method)


class _Plain:
    """The methods that all optimisers share."""

    add_param_group = _plain(torch.optim.Optimizer.add_param_group)
    zero_grad = _plain(torch.optim.Optimizer.zero_grad)
    state_dict = _plain(torch.optim.Optimizer.state_dict)
    load_state_dict = _plain(torch.optim.Optimizer.load_state_dict)


class Adam(_Plain, torch.optim.Adam):
    """PyTorch's, without an import of its compiler."""

    step = torch.no_grad()(_plain(torch.optim.Adam.step))


class AdamW(_Plain, torch.optim.AdamW):
    """PyTorch's, without an import of its compiler."""

    step = torch.no_grad()(_plain(torch.optim.AdamW.step))


class RMSprop(_Plain, torch.optim.RMSprop):
    """PyTorch's, without an import of its compiler."""

    step = torch.no_grad()(_plain(torch.optim.RMSprop.step))


_CLASSES: dict[str, type[torch.optim.Optimizer]] = {"adam": Adam, "adamw": AdamW, "rmsprop": RMSprop}


class NonFiniteGradientError(RuntimeError):
    """A gradient or a temporal difference was infinite or NaN."""

    ADVICE = (
        "Lower learner.learning_rate, scale observations to about -1..1, set learner.reward_clip, or try "
        "learner.precision='fp32'"
    )


def make_optimiser(
    params: Iterable[nn.Parameter], config: OptimiserConfig, device: torch.device | str
) -> torch.optim.Optimizer:
    """Build the optimiser of ``config`` in its fastest form that works on ``device``.

    Adam and AdamW (Kingma & Ba 2015; Loshchilov & Hutter 2019) are fused into one kernel if a probe step of the
    fused form equals the closed form on this device (on one CPU core, for the Nature CNN's 1.7M parameters:
    3.2 ms a step against 8.6 ms). RMSprop has no fused form; it is ``p -= lr g / (sqrt(v) + eps)``, ``v`` from 0, as
    in Cleanba's IMPALA, with epsilon outside the root.

    Args:
        params: Parameters, fp32, all on ``device``.
        config: Kind and hyperparameters.
        device: Device of the parameters. On CUDA the optimiser can be captured in a graph.

    Raises:
        ValueError: There are no parameters.
    """
    params = list(params)
    if not params:
        raise ValueError("the model has no parameters to optimise: check its registration, or its requires_grad_ calls")
    device = torch.device(device)
    on_cuda = device.type == "cuda"
    options: dict[str, Any] = {
        # A captured graph would freeze a Python number.
        "lr": torch.tensor(config.learning_rate, device=device) if on_cuda else config.learning_rate,
        "weight_decay": config.weight_decay,
        "capturable": on_cuda,
    }
    method = config.method
    if isinstance(method, settings.RMSprop):
        options |= {"alpha": method.alpha, "eps": method.eps, "foreach": True}
    else:
        options |= {"betas": method.betas, "eps": method.eps}
        options["fused" if _fused_adam_works(str(device)) else "foreach"] = True
    return _CLASSES[method.kind](params, **options)


@functools.cache
def _fused_adam_works(device: str) -> bool:
    """Whether one step of torch's fused Adam on ``device`` equals the closed form."""
    param = nn.Parameter(torch.ones(16, device=device))
    param.grad = torch.linspace(-2.0, 2.0, 16, device=device)
    try:
        Adam([param], lr=0.125, eps=1e-8, fused=True).step()
    except RuntimeError:  # "`fused=True` requires all the params to be floating point Tensors of supported devices"
        return False
    # The first step of Adam is lr * sign(g).
    return torch.allclose(param.detach(), 1.0 - 0.125 * param.grad.sign(), atol=1e-5)


def set_learning_rate(optimiser: torch.optim.Optimizer, value: float) -> None:
    """Set the learning rate of all groups; on CUDA without a sync, also for captured graphs."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value


def set_betas(optimiser: torch.optim.Optimizer, betas: tuple[float, float]) -> None:
    """Set the decay of Adam's moments in all groups."""
    for group in optimiser.param_groups:
        group["betas"] = betas


def optimiser_state(optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the state for a checkpoint: the kind and each parameter's moments (tensors, not copied)."""
    return {"kind": type(optimiser).__name__.lower(), "moments": optimiser.state_dict()["state"]}


def load_optimiser_state(optimiser: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load the moments of ``optimiser_state``, which may come from another device.

    Hyperparameters stay those of ``optimiser``: a resumed run's explicit arguments take precedence, and the schedule
    sets the learning rate. Call this before a graph is captured: the moments become new tensors.

    Raises:
        ValueError: The state belongs to another kind of optimiser or another model.
    """
    kind = type(optimiser).__name__.lower()
    if state["kind"] != kind:
        raise ValueError(
            f"the checkpoint's optimiser is {state['kind']!r}, this run's is {kind!r}: their moments mean different "
            f"things; resume with --learner.optimiser {state['kind']}, or start a new run"
        )
    params = [p for group in optimiser.param_groups for p in group["params"]]
    moments: Mapping[int, Mapping[str, Any]] = state["moments"]
    # A parameter that never had a gradient has no moments.
    if not set(moments) <= set(range(len(params))):
        raise ValueError(
            f"the checkpoint's optimiser has moments of {len(moments)} parameters, this model has {len(params)}: it is "
            f"from another model; resume with the saved model configuration"
        )
    for index, of_param in moments.items():
        for name, value in of_param.items():
            if isinstance(value, Tensor) and value.dim() > 0 and value.shape != params[index].shape:
                raise ValueError(
                    f"the checkpoint's optimiser has {name} of shape {tuple(value.shape)} for parameter {index}, which "
                    f"has shape {tuple(params[index].shape)}: it is from another model; resume with the saved model "
                    f"configuration"
                )
    rates = [group["lr"] for group in optimiser.param_groups]
    groups = optimiser.state_dict()["param_groups"]
    fitting = {
        index: {name: _fitting(value, params[index]) for name, value in of_param.items()}
        for index, of_param in moments.items()
    }
    optimiser.load_state_dict({"state": fitting, "param_groups": groups})
    # Loading copies the groups and their learning-rate tensor, which a captured graph may share.
    for group, rate in zip(optimiser.param_groups, rates, strict=True):
        group["lr"] = rate


def _fitting(value: object, param: nn.Parameter) -> object:
    """Return a copy of an entry of an optimiser's state, which may be that of an optimiser that goes on.

    It is in the parameter's memory format, which may change between sessions: fused kernels read both in memory order.
    """
    if not isinstance(value, Tensor):
        return value
    return torch.empty_like(param, dtype=value.dtype).copy_(value) if value.dim() > 0 else value.clone()


class NonFiniteGuard:
    """Records on the device whether any gradient norm was not finite.

    Pass one to every ``clip_grad_norm_`` of a batch and call ``check`` once after its last SGD step, before its weights
    are published or saved. Non-finite gradients are replaced by zeros, so that parameters and moments stay finite and
    the final checkpoint is usable.

    Args:
        device: Device of the gradients.
    """

    def __init__(self, device: torch.device | str) -> None:
        self._seen = torch.zeros((), dtype=torch.bool, device=device)

    def observe_(self, norm: Tensor, grads: list[Tensor]) -> None:
        """Record ``norm`` (a scalar) and zero ``grads`` if it is not finite. No host sync on CUDA."""
        if norm.device.type == "cpu":
            if not math.isfinite(norm.item()):
                self._seen.fill_(True)
                torch._foreach_zero_(grads)
            return
        is_bad = ~torch.isfinite(norm)
        self._seen.logical_or_(is_bad)
        for grad in grads:  # not a multiplication by 0: infinity and NaN would survive it
            grad.masked_fill_(is_bad, 0.0)

    def check(self, where: Callable[[], str]) -> None:
        """Read the flag (one host sync on CUDA) and clear it.

        Args:
            where: Returns the message's context: what was computed, and what was not finite.

        Raises:
            NonFiniteGradientError: A norm since the last check was not finite.
        """
        if self._seen.item():
            self._seen.zero_()
            raise NonFiniteGradientError(
                f"{where()}; the gradient is not finite and was replaced by zeros. {NonFiniteGradientError.ADVICE}"
            )


def clip_grad_norm_(
    params: Iterable[nn.Parameter], max_norm: float | None, guard: NonFiniteGuard | None = None
) -> Tensor:
    """Scale gradients in place to a total L2 norm of at most ``max_norm``.

    Equals ``torch.nn.utils.clip_grad_norm_``, with its factor ``min(1, max_norm / (norm + 1e-6))``, with three
    differences: on a CPU gradients are multiplied only if that changes them, ``guard`` handles a non-finite gradient,
    and nothing is read back from the device.

    Args:
        params: Parameters on one device; those without a gradient are skipped.
        max_norm: Largest norm; ``None`` only measures it.
        guard: Records and zeroes a non-finite gradient.

    Returns:
        The norm before clipping: a float32 scalar on the gradients' device.

    Raises:
        ValueError: No parameter has a gradient.
    """
    grads = [p.grad for p in params if p.grad is not None]
    if not grads:
        raise ValueError("no parameter has a gradient to clip: call backward() first")
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads, 2.0)))
    if guard is not None:
        guard.observe_(norm, grads)
    if max_norm is not None:
        # A NaN norm must not undo the guard's zeros; without a guard, the gradients keep their NaN.
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0).nan_to_num_(nan=0.0)
        if norm.device.type != "cpu" or factor < 1.0:
            torch._foreach_mul_(grads, factor)
    return norm

"""The machine's bound for a preset, measured beside it, and how much of it a speed is."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from rollmill.api import make_config
from rollmill.benchmarking.bound import Bound, BoundMeter
from rollmill.config import Config

__all__ = ["BOUND_SHARE", "SEARCH_SHARE", "bound_meter", "share_of"]

# Of a benchmark's own seconds: for finding the fastest kernels, and for all rounds of the bound.
SEARCH_SHARE = 0.15
BOUND_SHARE = 0.45


def bound_meter(config: Config) -> AbstractContextManager[BoundMeter | None]:
    """Measures the bound of this environment and network; None where there are no frozen kernels for them.

    The kernels are of the presets' own, so other settings of env or model leave nothing to compare with.

    Args:
        config: Resolved.
    """
    preset = make_config(config.preset or config.env.name)
    if (config.env, config.model) != (preset.env, preset.model):
        return nullcontext()
    family, _, name = config.env.name.partition("/")
    epochs, sizes = config.learner.epochs, {"minibatch": config.learner.minibatch_size}
    if family == "atari" and config.model.core == "none" and config.model.encoder in ("auto", "nature"):
        return BoundMeter("atari", epochs=epochs, env_options={"game": name}, train_options=sizes)
    if family == "vizdoom" and config.model.core == "gru":
        return BoundMeter("vizdoom", epochs=epochs, env_options={"scenario": name}, train_options=sizes)
    if config.env.name in ("gym/CartPole-v1", "CartPole-v1"):
        return BoundMeter("cartpole", epochs=epochs, train_options=sizes)
    if config.env.name == "envpool/CartPole-v1":
        return BoundMeter("cartpole-envpool", epochs=epochs, train_options=sizes)
    return nullcontext()


def share_of(bound: Bound | None, steps_per_second: float, *, name: str) -> dict[str, object]:
    """Entries of a benchmark's result: the bound, and ``steps_per_second`` as a share of it under ``name``.

    Args:
        bound: None gives no entries.
        steps_per_second: What was reached.
        name: ``NAME`` is the share of the bound measured alone, ``NAME_loaded`` of the one measured under load.
    """
    if bound is None:
        return {}
    return {
        name: steps_per_second / bound.bound_steps_per_second,
        f"{name}_loaded": steps_per_second / bound.bound_loaded_steps_per_second,
        "bound_steps_per_second": bound.bound_steps_per_second,
        "bound_loaded_steps_per_second": bound.bound_loaded_steps_per_second,
        "bound": bound.as_dict(),
    }

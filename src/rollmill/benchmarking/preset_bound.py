"""The machine's bound for a preset, measured beside it, and how much of it a speed is."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from types import TracebackType
from typing import Self

from rollmill.api import make_config
from rollmill.benchmarking.bound import BoundMeter
from rollmill.settings.config import Config

__all__ = ["PresetBound"]

# Of a benchmark's own seconds: for finding the fastest kernels, and for all rounds of the bound.
_SEARCH_SHARE = 0.15
_BOUND_SHARE = 0.45


class PresetBound:
    """Measures the bound of a preset's environment and network; does nothing where they have no frozen kernels.

    A context manager: the kernels' processes end with it.

    Args:
        config: Resolved.
        seconds: The benchmark's own; the bound takes three fifths of that in addition.
        rounds: How many times :meth:`measure_round` will be called.
    """

    def __init__(self, config: Config, *, seconds: float, rounds: int) -> None:
        """Looks for the kernels, and starts nothing."""
        self._meter = _meter_for(config)
        self._search_seconds = seconds * _SEARCH_SHARE
        self._round_seconds = seconds * _BOUND_SHARE / rounds

    def __enter__(self) -> Self:
        if self._meter is not None:
            self._meter.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._meter is not None:
            self._meter.__exit__(kind, error, at)

    @property
    def is_known(self) -> bool:
        """Whether there are kernels for this preset."""
        return self._meter is not None

    def choose_variants(self) -> None:
        """Finds the fastest kernels on this machine; once, before the rounds."""
        if self._meter is not None:
            self._meter.choose_variants(self._search_seconds)

    def measure_round(self) -> None:
        """Measures every stage once, alone and under load."""
        if self._meter is not None:
            self._meter.measure_round(self._round_seconds)

    def share(
        self, steps_per_second: float, *, name: str, average: Callable[[list[float]], float] = median
    ) -> dict[str, object]:
        """See :meth:`Bound.share` and :meth:`BoundMeter.bound`; no entries where there are no kernels."""
        return {} if self._meter is None else self._meter.bound(average).share(steps_per_second, name=name)


def _meter_for(config: Config) -> BoundMeter | None:
    """The kernels are of the presets' own, so other settings of env or model leave nothing to compare with."""
    preset = make_config(config.preset or config.env.name)
    if (config.env, config.model) != (preset.env, preset.model):
        return None
    family, _, name = config.env.name.partition("/")
    if config.learner.epochs == "auto":
        return None  # of an environment that there are no kernels for
    epochs, sizes = config.learner.epochs, {"minibatch": config.learner.minibatch_size}
    if family == "atari" and config.model.core == "none" and config.model.encoder in ("auto", "nature"):
        return BoundMeter("atari", epochs=epochs, env_options={"game": name}, train_options=sizes)
    if family == "vizdoom" and config.model.core == "gru":
        return BoundMeter("vizdoom", epochs=epochs, env_options={"scenario": name}, train_options=sizes)
    if config.env.name in ("gym/CartPole-v1", "CartPole-v1"):
        return BoundMeter("cartpole", epochs=epochs, train_options=sizes)
    if config.env.name == "envpool/CartPole-v1":
        return BoundMeter("cartpole-envpool", epochs=epochs, train_options=sizes)
    return None

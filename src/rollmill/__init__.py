"""Rollmill: asynchronous reinforcement learning as fast as one machine can simulate.

::

    import rollmill

    run = rollmill.train("atari/pong", total_steps=3_000_000)
    agent = rollmill.load(run.dir)
    action = agent.act(observation)

Names are imported when they are first used, so ``import rollmill`` loads neither torch nor Gymnasium.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollmill.algorithms.registry import register_algorithm
    from rollmill.api import Run, load, make_config, train
    from rollmill.callback import Callback, LiveRun
    from rollmill.campaigns.suite_runs import suite
    from rollmill.campaigns.sweeping import sweep
    from rollmill.envs.registry import register_env
    from rollmill.evaluation.demonstrations import record
    from rollmill.evaluation.evaluate import evaluate
    from rollmill.evaluation.hub import push
    from rollmill.evaluation.players import register_player
    from rollmill.evaluation.tournament import tournament
    from rollmill.evaluation.watch import watch
    from rollmill.exporting.export import export
    from rollmill.learning.admission import register_admission
    from rollmill.learning.matchmaking import register_matchmaking
    from rollmill.models.observation import register_encoder
    from rollmill.models.registry import register_model
    from rollmill.pbt.objectives import register_objective
    from rollmill.reporting.plots import plot_runs
    from rollmill.rollout.assignment import register_assignment
    from rollmill.storage.removers import register_remover
    from rollmill.tracking.registry import register_tracker
    from rollmill.tuning.tune import tune

__all__ = [
    "Callback",
    "LiveRun",
    "Run",
    "evaluate",
    "export",
    "load",
    "make_config",
    "plot_runs",
    "push",
    "record",
    "register_admission",
    "register_algorithm",
    "register_assignment",
    "register_encoder",
    "register_env",
    "register_matchmaking",
    "register_model",
    "register_objective",
    "register_player",
    "register_remover",
    "register_tracker",
    "suite",
    "sweep",
    "tournament",
    "train",
    "tune",
    "watch",
]

_HOME = {
    "Callback": "rollmill.callback",
    "LiveRun": "rollmill.callback",
    "Run": "rollmill.api",
    "load": "rollmill.api",
    "make_config": "rollmill.api",
    "train": "rollmill.api",
    "evaluate": "rollmill.evaluation.evaluate",
    "push": "rollmill.evaluation.hub",
    "record": "rollmill.evaluation.demonstrations",
    "suite": "rollmill.campaigns.suite_runs",
    "sweep": "rollmill.campaigns.sweeping",
    "tournament": "rollmill.evaluation.tournament",
    "export": "rollmill.exporting.export",
    "tune": "rollmill.tuning.tune",
    "watch": "rollmill.evaluation.watch",
    "plot_runs": "rollmill.reporting.plots",
    "register_admission": "rollmill.learning.admission",
    "register_assignment": "rollmill.rollout.assignment",
    "register_matchmaking": "rollmill.learning.matchmaking",
    "register_objective": "rollmill.pbt.objectives",
    "register_algorithm": "rollmill.algorithms.registry",
    "register_env": "rollmill.envs.registry",
    "register_encoder": "rollmill.models.observation",
    "register_model": "rollmill.models.registry",
    "register_player": "rollmill.evaluation.players",
    "register_remover": "rollmill.storage.removers",
    "register_tracker": "rollmill.tracking.registry",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in _HOME:
        raise AttributeError(f"module 'rollmill' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("rollmill")
    except PackageNotFoundError:
        return "unknown (not installed)"

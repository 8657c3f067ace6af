"""Environments: construction, wrappers, groups, autoreset and truncation. Does not import torch.

``from rollmill.envs import EnvConfig`` imports no simulator: everything but the configuration is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rollmill.envs.config import AtariOptions, EnvConfig, VizdoomOptions

if TYPE_CHECKING:
    from rollmill.envs.actions import ActionCodec
    from rollmill.envs.factory import make_env, make_group, probe
    from rollmill.envs.failures import RestartBudget
    from rollmill.envs.registry import register_env
    from rollmill.envs.spaces import ObservationCodec
    from rollmill.envs.views import Group, ObservationView, OutcomeView

__all__ = [
    "ActionCodec",
    "AtariOptions",
    "EnvConfig",
    "Group",
    "ObservationCodec",
    "ObservationView",
    "OutcomeView",
    "RestartBudget",
    "VizdoomOptions",
    "make_env",
    "make_group",
    "probe",
    "register_env",
]

_LAZY = {
    "ActionCodec": "actions",
    "Group": "views",
    "ObservationCodec": "spaces",
    "ObservationView": "views",
    "OutcomeView": "views",
    "RestartBudget": "failures",
    "make_env": "factory",
    "make_group": "factory",
    "probe": "factory",
    "register_env": "registry",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)

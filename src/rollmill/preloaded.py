"""The imports of the fork server, once for all processes of a program; importing this makes a process the server.

It must not import code of the user's or simulators; Gymnasium itself imports neither since its version 1.0. It must not
start threads, which a fork does not copy, or use CUDA, which does not survive a fork.
"""

from __future__ import annotations

import contextlib
import gc
import importlib

from rollmill.runtime.fork_server import become_fork_server

__all__: list[str] = []

_MODULES = (
    "rollmill.algorithms.registry",
    "rollmill.envs.factory",
    "rollmill.evaluation.in_training",
    "rollmill.learning.gradients",
    "rollmill.learning.gradient_server",
    "rollmill.learning.measure",
    "rollmill.learning.replay_trainer",
    "rollmill.models.registry",
    "rollmill.regimes.asynchronous",
    "rollmill.regimes.lockstep",
    "rollmill.regimes.replay",
    "rollmill.regimes.torch_side",
    "rollmill.rollout.worker",
)


become_fork_server()
# If an import fails, the process that needs the module reports it.
for _module in _MODULES:
    with contextlib.suppress(Exception):
        importlib.import_module(_module)
gc.collect()
# Exclude all objects from garbage collection in the processes, so that their pages stay shared.
gc.freeze()

"""What the fork server imports, once for all processes of a program: importing it makes a process the fork server.

Code of the user's, and Gymnasium, which imports what others have registered with it, are left to the processes
themselves. Nothing here may start a thread, which a fork would not copy, or use CUDA, which a fork breaks.
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
    "rollmill.inference.actor_critic",
    "rollmill.inference.lockstep",
    "rollmill.inference.replay",
    "rollmill.learning.learner",
    "rollmill.learning.lockstep",
    "rollmill.learning.replay",
    "rollmill.models.registry",
    "rollmill.regimes.asynchronous",
    "rollmill.regimes.lockstep",
    "rollmill.regimes.replay",
    "rollmill.rollout.worker",
)


def _import_optimisers() -> None:
    """PyTorch imports its compiler, which takes a second, when the first optimiser is made.

    No step is made with it: it would ask for a GPU.
    """
    import torch

    torch.optim.SGD([torch.zeros(1)], lr=0.0)


become_fork_server()
# What cannot be imported fails in the process that needs it, which reports it.
for _module in _MODULES:
    with contextlib.suppress(Exception):
        importlib.import_module(_module)
with contextlib.suppress(Exception):
    _import_optimisers()
gc.collect()
# Collections in the processes leave all of this alone, whose pages stay shared.
gc.freeze()

"""Reports of exceptions in environments, and the budget of rebuilds."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path

from rollmill.envs.errors import EnvironmentFailure

_HERE = f"{Path(__file__).resolve().parent}/"
_RETURNED = {
    "reset": "observation and info",
    "step": "observation, reward, terminated, truncated and info",
}


class RestartBudget:
    """Budget of environment rebuilds; one for each rollout worker, shared by its groups.

    Attributes:
        allowed: Rebuilds allowed in all.
        spent: Rebuilds made.
    """

    def __init__(self, allowed: int) -> None:
        """Create an unspent budget."""
        self.allowed = allowed
        self.spent = 0

    def spend(self) -> bool:
        """Spend one rebuild; False if none is left."""
        if self.spent >= self.allowed:
            return False
        self.spent += 1
        return True


def log_of_closing(name: str, error: BaseException) -> None:
    """Log that closing an environment raised, which changes nothing for the run."""
    logging.getLogger(__name__).warning("%s", report(name, "close", error))


def failure(
    name: str,
    index: int | str,
    where: str,
    step: int,
    error: BaseException,
    budget: RestartBudget | None,
    *,
    can_rebuild: bool = True,
) -> EnvironmentFailure:
    """Return the error to raise ``from`` an environment's exception, which shows its traceback.

    Args:
        name: The environment's name.
        index: Which environment.
        where: What raised: "constructor", "reset" or "step".
        step: Group step.
        error: The exception.
        budget: The rebuilds, which are spent; None where none were allowed.
        can_rebuild: Whether another setting would have allowed some.
    """
    message = f"environment {index} of {name} raised {type(error).__name__} in its {where}"
    if where != "constructor":
        message += f" (group step {step})"
    if str(error):
        message += f": {error}"
    if where in _RETURNED and _is_of_unpacking(error):
        message += f" ({where} must return {_RETURNED[where]})"
    return EnvironmentFailure(message + _advice(where, error, budget, can_rebuild=can_rebuild))


def _advice(where: str, error: BaseException, budget: RestartBudget | None, *, can_rebuild: bool) -> str:
    if budget is not None:
        return (
            f"; env.restart_budget is spent ({budget.spent} of {budget.allowed} rebuilds): fix the environment, or "
            "raise the budget"
        )
    if isinstance(error, TypeError) and where == "constructor":
        return "; env.kwargs.NAME are arguments of its constructor, and the only ones"
    if isinstance(error, TypeError) and where == "reset" and "unexpected keyword argument" in str(error):
        return "; Gymnasium 1.x calls reset(seed=..., options=...)"
    if not can_rebuild:
        return ""
    return "; env.on_failure=restart rebuilds environments that raise in training and evaluations"


def _is_of_unpacking(error: BaseException) -> bool:
    """Whether the environment returned too few or too many values (instead of raising)."""
    frames = traceback.extract_tb(error.__traceback__)
    is_ours = all(frame.filename.startswith(_HERE) for frame in frames)
    return is_ours and isinstance(error, (TypeError, ValueError)) and "unpack" in str(error)


def report(who: str, where: str, error: BaseException) -> str:
    """Format a failure that does not end the run, with the environment's traceback."""
    return f"{who} failed in its {where}:\n" + "".join(traceback.format_exception(error)).rstrip()

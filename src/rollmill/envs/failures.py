"""What happens when an environment raises: how it is reported and how often it may be mended."""

from __future__ import annotations

import traceback
from pathlib import Path

from rollmill.envs.errors import EnvironmentFailure

__all__ = ["RestartBudget", "failure", "report"]

_HERE = f"{Path(__file__).resolve().parent}/"
_RETURNED = {
    "reset": "observation and info",
    "step": "observation, reward, terminated, truncated and info",
}


class RestartBudget:
    """How many times environments may still be rebuilt; one for each rollout worker, shared by its groups.

    Attributes:
        allowed: Rebuilds allowed in all.
        spent: Rebuilds made.
    """

    def __init__(self, allowed: int) -> None:
        """Start with nothing spent."""
        self.allowed = allowed
        self.spent = 0

    def spend(self) -> bool:
        """Take one rebuild; False when none is left."""
        if self.spent >= self.allowed:
            return False
        self.spent += 1
        return True


def failure(
    name: str, index: int | str, where: str, step: int, error: BaseException, budget: RestartBudget | None
) -> EnvironmentFailure:
    """The error to raise ``from`` an environment's exception, so that its own traceback is shown."""
    message = f"environment {index} of {name} raised {type(error).__name__} in its {where}"
    if where != "constructor":
        message += f" (group step {step})"
    if str(error):
        message += f": {error}"
    if where in _RETURNED and _is_of_unpacking(error):
        message += f" ({where} has to return {_RETURNED[where]})"
    if budget is None:
        advice = "; the traceback above is the environment's; env.on_failure=restart rebuilds environments that raise"
    else:
        advice = (
            f"; env.restart_budget is spent ({budget.spent} of {budget.allowed} rebuilds): mend the environment, or "
            "allow more"
        )
    return EnvironmentFailure(message + advice)


def _is_of_unpacking(error: BaseException) -> bool:
    """Whether what the environment returned had too few or too many parts, as against an exception inside of it."""
    frames = traceback.extract_tb(error.__traceback__)
    is_ours = all(frame.filename.startswith(_HERE) for frame in frames)
    return is_ours and isinstance(error, (TypeError, ValueError)) and "unpack" in str(error)


def report(who: str, where: str, error: BaseException) -> str:
    """What is said of a failure that does not end the run: who failed where, with the environment's own traceback."""
    return f"{who} failed in its {where}:\n" + "".join(traceback.format_exception(error)).rstrip()

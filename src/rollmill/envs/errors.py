"""Exceptions raised for environments, all of :class:`RollmillEnvError`."""

# ruff: noqa: N818 - the names describe the problem; the base class has the suffix Error
from __future__ import annotations

import signal


def failures() -> tuple[type[BaseException], ...]:
    """Exceptions to catch around an environment's code, for an ``except`` clause.

    ``sys.exit()`` in an environment ends the environment, not its process. Ctrl-C does not reach the processes of a
    run, so a KeyboardInterrupt there comes from the environment; elsewhere it comes from the user.
    """
    is_out_of_reach = signal.getsignal(signal.SIGINT) == signal.SIG_IGN and not callable(
        signal.getsignal(signal.SIGTERM)
    )
    return (BaseException,) if is_out_of_reach else (Exception, SystemExit, GeneratorExit)


class RollmillEnvError(Exception):
    """Base class of these exceptions."""


class UnknownEnvironment(RollmillEnvError):
    """No environment has that name; the message suggests similar ones."""


class MissingExtra(RollmillEnvError):
    """An optional package is not installed; the message says how to install it."""


class UnsupportedSpace(RollmillEnvError):
    """An observation or action space that has no fixed-shape place in a slot."""


class EnvironmentFailure(RollmillEnvError):
    """An environment raised; ``__cause__`` is its own exception, with the environment's traceback."""


class NonFiniteObservation(RollmillEnvError):
    """A NaN or an infinity came out of an environment."""


class InvalidActionMask(RollmillEnvError):
    """An action mask that does not fit the action space, or that allows no action at all."""


class InvalidReward(RollmillEnvError):
    """A reward that is not one real number."""


class UnreadableSnapshot(RollmillEnvError):
    """The environments saved in a checkpoint cannot be unpickled."""

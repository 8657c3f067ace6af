"""The trackers by name: the built-in ones, and those that the user registers."""

from __future__ import annotations

from rollmill.extras import can_import, install_command
from rollmill.runtime.definitions import Registry
from rollmill.settings.value_checks import ConfigError
from rollmill.tracking.base import TrackedRun, Tracker, TrackerFactory
from rollmill.tracking.config import TENSORBOARD, TrackingConfig


class UnknownTrackerError(ConfigError):
    """No tracker has the name."""


class TrackerNotInstalledError(ConfigError):
    """The package of a tracker is missing."""


# Each imports its service's package only when it is started.
def _tensorboard(run: TrackedRun) -> Tracker:
    from rollmill.tracking.tensorboard import TensorBoardTracker

    return TensorBoardTracker(run)


def _wandb(run: TrackedRun) -> Tracker:
    from rollmill.tracking.wandb import WandbTracker

    return WandbTracker(run)


def _mlflow(run: TrackedRun) -> Tracker:
    from rollmill.tracking.mlflow import MlflowTracker

    return MlflowTracker(run)


def _trackio(run: TrackedRun) -> Tracker:
    from rollmill.tracking.trackio import TrackioTracker

    return TrackioTracker(run)


TRACKERS: Registry[TrackerFactory] = Registry(
    "tracker",
    {TENSORBOARD: _tensorboard, "wandb": _wandb, "mlflow": _mlflow, "trackio": _trackio},
    register="register_tracker",
    error=UnknownTrackerError,
)


def register_tracker(name: str, factory: TrackerFactory) -> None:
    """Make ``tracker=name`` report runs to ``factory(run)``.

    The tracker runs in the main process (of rank 0, with several ranks), in a thread of its own. Register it before
    the run starts, in the script itself or in a module that ``--import`` names.

    Args:
        name: A new name.
        factory: Makes a :class:`rollmill.tracking.base.Tracker` of a :class:`rollmill.tracking.base.TrackedRun`.

    Raises:
        ValueError: The name is taken by another factory.
    """
    TRACKERS.register(name, factory)


def check_trackers(config: TrackingConfig) -> None:
    """Check before a run starts that its trackers exist and are installed.

    TensorBoard, the default, may be missing: the run then starts with a note.

    Raises:
        UnknownTrackerError: No tracker has one of the names.
        TrackerNotInstalledError: A package is missing; the message says how to install it.
    """
    for name in config.names:
        TRACKERS.find(name, "tracker")
        if name != TENSORBOARD and not is_installed(name):
            raise TrackerNotInstalledError(
                f"tracker={name!r} needs a package that is not installed: {install_command(name)}, or omit {name}."
            )


def is_installed(name: str) -> bool:
    """Whether the package of a tracker can be imported; the user's own need none."""
    return TRACKERS.is_registered(name) or can_import(name)

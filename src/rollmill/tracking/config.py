"""Which trackers a run reports to, and under which names."""

from __future__ import annotations

from dataclasses import dataclass, fields

from rollmill.settings.fields import setting
from rollmill.settings.value_checks import ABOVE_ZERO, NAME, Checked, ConfigError

TENSORBOARD = "tensorboard"


@dataclass(frozen=True, kw_only=True)
class TrackingConfig(Checked, section="tracking"):
    """Where a run is tracked.

    Attributes:
        trackers: Trackers that show the run: "tensorboard", "wandb" (Weights & Biases), "mlflow", "trackio" and names
            given to ``register_tracker``, joined by commas; none for none.
        project: The project of Weights & Biases and Trackio, and the experiment of MLflow.
        run_name: The run's name; None is the name of its directory.
        group: Runs that belong together, for example the seeds of one experiment; None for no group.
        tags: Words to find the run by.
        wandb_entity: The user or team that the project belongs to; None is the default one of Weights & Biases.
        mlflow_uri: Address of MLflow's server or store; None is that of ``MLFLOW_TRACKING_URI``, or MLflow's default.
        trackio_space: Space of Hugging Face that Trackio reports to, as ``user/name``; None keeps the run on this
            machine.
        upload_checkpoints: Whether trackers get the final and the best checkpoint when the run ends.
        call_timeout_s: Seconds that one call of a tracker may take before the run continues without it. At its end, a
            run waits as long for what is still to be sent.
    """

    trackers: tuple[str, ...] | None = setting((TENSORBOARD,), key="tracker")
    project: str = setting("rollmill", NAME)
    run_name: str | None = setting(None, NAME, "for the name of the run directory")
    group: str | None = setting(None, NAME, "for no group")
    tags: tuple[str, ...] = ()
    wandb_entity: str | None = setting(None, NAME, "for the default one")
    mlflow_uri: str | None = setting(None, NAME, "for MLflow's default")
    trackio_space: str | None = setting(None, NAME, "for this machine")
    upload_checkpoints: bool = True
    call_timeout_s: float = setting(120.0, ABOVE_ZERO, "(seconds)")

    def __post_init__(self) -> None:
        """Reject names of trackers that are empty or given twice."""
        super().__post_init__()
        names = self.names
        if "" in names or len(set(names)) < len(names):
            raise ConfigError(f"tracker={','.join(names)!r}: name each tracker once, as in tensorboard,wandb, or none.")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the trackers, which may be none."""
        return self.trackers or ()

    @property
    def reports_to(self) -> str:
        """What a run with these settings sends elsewhere, in words; empty if everything stays in its directory."""
        services = [name for name in self.names if name != TENSORBOARD]
        addresses = ("wandb_entity", "mlflow_uri", "trackio_space")
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name in addresses}
        parts = [f"tracker={','.join(services)}"] if services else []
        parts += [f"tracking.{name}={value}" for name, value in given.items() if value is not None]
        return ", ".join(parts)

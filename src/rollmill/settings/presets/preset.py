"""What a preset is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rollmill.envs.config import EnvConfig


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A reference configuration.

    Attributes:
        name: Its name, ``<family>/<id>`` (a bare Gymnasium id becomes ``gym/<id>``), that of a registration, or of
            several tasks.
        env: The environment.
        overrides: Dotted key of the whole configuration -> value.
    """

    name: str
    env: EnvConfig
    overrides: Mapping[str, object] = field(default_factory=dict)

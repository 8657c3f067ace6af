"""What a benchmark measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rollmill.api import make_config
from rollmill.settings.config import Config


@dataclass(frozen=True)
class Subject:
    """A preset, with some settings replaced.

    Attributes:
        preset: Its name.
        overrides: Settings that replace the preset's.
        algo: See :func:`rollmill.train`.
        protocol: See :func:`rollmill.train`.
    """

    preset: str
    overrides: Mapping[str, object] = field(default_factory=dict)
    algo: str | None = None
    protocol: str | None = None

    def config(self, overrides: Mapping[str, object] | None = None) -> Config:
        """Make the configuration.

        Args:
            overrides: Settings instead of its own.

        Raises:
            ValueError: An unknown key or an invalid value.
        """
        given = self.overrides if overrides is None else overrides
        return make_config(self.preset, given, algo=self.algo, protocol=self.protocol)

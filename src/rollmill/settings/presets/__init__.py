"""Reference configurations, each value with its source."""

from rollmill.settings.presets.preset import Preset
from rollmill.settings.presets.resolve import list_presets, missing_families, resolve

__all__ = ["Preset", "list_presets", "missing_families", "resolve"]

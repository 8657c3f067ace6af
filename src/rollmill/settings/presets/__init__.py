"""Reference configurations, each value with its source."""

from rollmill.settings.presets.resolve import Preset, list_presets, missing_families, resolve

__all__ = ["Preset", "list_presets", "missing_families", "resolve"]

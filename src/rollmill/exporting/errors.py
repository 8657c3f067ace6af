"""The error of exporting."""

from __future__ import annotations


class ExportError(ValueError):
    """An agent cannot be exported, or its file does not act as the agent does."""

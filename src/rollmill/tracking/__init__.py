"""Trackers: services that keep a run's configuration, metrics, videos and checkpoints (docs/tracking.md)."""

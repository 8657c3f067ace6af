"""What is raised where the settings of a network do not fit what it is for."""

from __future__ import annotations


class UnfitModelError(ValueError):
    """A setting of the network does not fit the observation, the actions or the algorithm."""

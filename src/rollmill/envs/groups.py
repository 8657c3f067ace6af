"""Groups of environments: their views and the two kinds of group."""

from rollmill.envs.python_group import PythonGroup
from rollmill.envs.vector_group import VectorGroup
from rollmill.envs.views import Group, ObservationView, OutcomeView

__all__ = ["Group", "ObservationView", "OutcomeView", "PythonGroup", "VectorGroup"]

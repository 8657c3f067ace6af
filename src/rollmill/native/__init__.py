"""The typed door to the C++ core."""

from rollmill.native._core import set_pdeathsig

__all__ = ["set_pdeathsig"]

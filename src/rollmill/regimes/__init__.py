"""Regimes: each builds the parts of a run and connects them."""

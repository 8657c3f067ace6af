"""Regimes: each builds the parts and connects them, in one readable function."""

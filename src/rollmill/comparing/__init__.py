"""Comparing runs: their curves, their scores, and what the differences are worth."""

"""Comparison of runs: curves, scores, and the uncertainty of differences."""

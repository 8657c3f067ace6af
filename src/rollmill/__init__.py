"""Rollmill: asynchronous reinforcement learning as fast as one machine can simulate."""

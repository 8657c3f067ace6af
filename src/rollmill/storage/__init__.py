"""Where rollout, inference and learning meet: slots, weights and checkpoints. Imports no torch."""

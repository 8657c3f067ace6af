"""The rollout worker: hosts groups of environments and is the only process that touches them. Imports no torch."""

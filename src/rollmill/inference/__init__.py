"""The policy worker: one forward pass for the groups that are ready. Exchanges data only through storage."""

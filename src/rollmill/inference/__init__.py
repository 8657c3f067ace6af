"""The policy worker: one forward pass for the groups that are ready. Meets the other processes only in storage."""

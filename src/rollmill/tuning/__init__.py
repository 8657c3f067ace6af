"""Design-space exploration: which allocation of the cores trains fastest, and what limits the machine."""

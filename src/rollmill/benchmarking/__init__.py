"""Measurements: the ring, the replay, pure simulation, the sampler, full training, and the bound of the machine."""

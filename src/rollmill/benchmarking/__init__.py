"""Measurements: the ring, pure simulation, the sampler, full training, and the bound of the machine."""

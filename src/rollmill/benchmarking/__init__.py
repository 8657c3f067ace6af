"""The benchmarks of ``rollmill bench``: ring, replay, pure simulation, sampler and training."""

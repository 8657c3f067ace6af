"""How fast this machine could train at best, from frozen kernels of simulation, inference and training."""

"""Export of agents into files that other programs act with."""

"""Loading, evaluating, recording and watching trained agents. Importing this package does not import torch."""

"""Environments: construction, wrappers, groups, autoreset and truncation. Does not import torch."""

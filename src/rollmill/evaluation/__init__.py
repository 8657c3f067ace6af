"""Trained agents: loading, evaluating, filming and watching them. Importing this package imports no torch."""

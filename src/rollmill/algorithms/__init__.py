"""Off-policy algorithms: networks, losses and acting put together, for learners and policy workers alike.

Importing this package imports no torch, so that configuration can be read by processes that never need it; its modules
do, except :mod:`rollmill.algorithms.config`.
"""

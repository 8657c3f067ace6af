"""Networks: encoders, recurrent cores, heads, action distributions and normalisers.

Importing this package imports no torch, so that configuration can be read by processes that never need it; its modules
do, except :mod:`rollmill.models.config`.
"""

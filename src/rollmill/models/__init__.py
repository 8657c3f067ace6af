"""Networks: encoders, recurrent cores, heads, action distributions and normalisers.

Importing this package does not import torch, so that processes without torch can read configurations; its modules do,
except :mod:`rollmill.models.config`.
"""

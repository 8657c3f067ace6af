"""Algorithms: networks, acting and losses, shared by learners and policy workers.

Importing this package does not import torch, so that processes without torch can read configurations; its modules do,
except those with configurations.
"""

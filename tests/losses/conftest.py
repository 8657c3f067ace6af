"""One torch thread, as in every process of a run; more threads wait for each other on busy cores."""

from __future__ import annotations

import torch

torch.set_num_threads(1)

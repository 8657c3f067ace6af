"""Texts as arrays of fixed size."""

from __future__ import annotations

import re
import zlib
from itertools import pairwise
from typing import Any

import numpy as np

WORD_BUCKETS = 1000


def hashed_words(text: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return 1 for the bucket of each word of a text and of each pair of neighbouring words, uint8 ``[1000]``.

    Pairs tell "red object in the blue room" from "blue object in the red room". Words are compared without case and
    punctuation. Python's own hash differs between processes, hence CRC-32.
    """
    words = re.findall(r"[\w']+", text.lower())
    found = np.zeros(WORD_BUCKETS, np.uint8)
    for term in (*words, *map(" ".join, pairwise(words))):
        found[zlib.crc32(term.encode()) % WORD_BUCKETS] = 1
    return found

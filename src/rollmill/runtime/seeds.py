"""Random streams keyed by (seed, role, index), so that no two environments, workers or runs share one.

The index is global (the number of the environment in the run, never its place inside a worker): who carries an
environment then changes nothing about its randomness.
"""

from __future__ import annotations

import hashlib

import numpy as np

_FEISTEL_ROUNDS = 6


def sequence(seed: int, role: str, index: int = 0) -> np.random.SeedSequence:
    """Seed sequence of one stream.

    Args:
        seed: The run's seed, any integer >= 0.
        role: What the stream is for, for example ``"environment"`` or ``"minibatch order"``.
        index: Global number within the role, >= 0.

    Raises:
        ValueError: The seed or the index is negative.
    """
    _check(seed, index)
    digest = hashlib.sha256(role.encode()).digest()
    words = tuple(int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4))
    # The role takes four whole words of the key, so that no index can make one role look like another.
    return np.random.SeedSequence(entropy=seed, spawn_key=(*words, index))


def stream(seed: int, role: str, index: int = 0) -> np.random.Generator:
    """Generator of one stream; see `sequence`."""
    return np.random.default_rng(sequence(seed, role, index))


def int_seed(seed: int, role: str, index: int = 0, *, bits: int = 31) -> int:
    """Integer seed in ``[0, 2**bits)`` for interfaces that take one, such as ``env.reset(seed=...)``.

    Distinct indices of one (seed, role) get distinct integers, certainly and not just probably: the index is sent
    through a permutation keyed by (seed, role). (Independent 31-bit hashes would give two of 3,000 environments the
    same seed in one run out of 500.)

    Args:
        seed: The run's seed, any integer >= 0.
        role: What the seed is for.
        index: Global number within the role, in ``[0, 2**bits)``.
        bits: 31 for ALE and others that take a C int, up to 63 for NumPy and torch.

    Raises:
        ValueError: A negative seed, bits outside 8..63, or an index that does not fit the bits.
    """
    _check(seed, index)
    if not 8 <= bits <= 63:
        raise ValueError(f"int_seed was given bits={bits}; allowed are 8 to 63.")
    if index >= 1 << bits:
        raise ValueError(f"int_seed was given index={index}, which does not fit {bits} bits; use more bits.")
    key = hashlib.sha256(f"{seed}/{role}".encode()).digest()
    half = (bits + 1) // 2
    value = index
    while True:
        value = _permute(value, half, key)
        # An odd number of bits does not split into two halves: walk the cycle until back inside (about two steps).
        if value < 1 << bits:
            return value


def _permute(value: int, half: int, key: bytes) -> int:
    """Balanced Feistel network on ``2 * half`` bits: a bijection whatever the round function is (Luby & Rackoff)."""
    mask = (1 << half) - 1
    left, right = value >> half, value & mask
    for number in range(_FEISTEL_ROUNDS):
        message = bytes((number,)) + right.to_bytes(8, "little")
        mixed = int.from_bytes(hashlib.blake2b(message, key=key, digest_size=8).digest(), "little")
        left, right = right, left ^ (mixed & mask)
    return left << half | right


def _check(seed: int, index: int) -> None:
    if seed < 0 or index < 0:
        raise ValueError(f"A random stream was given seed={seed}, index={index}; both must be >= 0.")

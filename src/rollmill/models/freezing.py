"""Keeps chosen parameters as they are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from torch import nn

_MOST_MODULES = 12


class FreezeError(ValueError):
    """A pattern is the name of no parameter, or nothing is left to train."""


def is_named(name: str, pattern: str) -> bool:
    """Whether a pattern is the name of a parameter or buffer, or of a module that holds it.

    Args:
        name: For example ``acting.encoder.layers.0.weight``.
        pattern: With ``*``, ``?`` and ``[...]`` as in file names. It may leave out modules around and within:
            ``encoder``, ``encoder.layers.*`` and ``*.weight`` all match that name.
    """
    return any(fnmatchcase(name, whole) for whole in (pattern, f"{pattern}.*", f"*.{pattern}", f"*.{pattern}.*"))


def suggest_part(pattern: str, names: Iterable[str]) -> str:
    """Say which part of the names is most like a pattern, if any is, and which modules there are."""
    split = [name.split(".") for name in names]
    parts = dict.fromkeys(
        ".".join(words[start:end])
        for words in split
        for start in range(len(words))
        for end in range(start + 1, len(words) + 1)
    )
    near = difflib.get_close_matches(pattern, parts, n=1, cutoff=0.75)
    modules = list(dict.fromkeys(".".join(words[:2]) for words in split))
    more = len(modules) - _MOST_MODULES
    listed = f"{', '.join(modules[:_MOST_MODULES])}{f' and {more} more' if more > 0 else ''}"
    return f"did you mean {near[0]!r}? There are {listed}" if near else f"there are {listed}"


def freeze(network: nn.Module, patterns: Sequence[str]) -> int:
    """Exclude parameters from training. Running moments of normalisers still follow the data.

    Args:
        network: Its parameters are changed in place.
        patterns: See :func:`is_named`.

    Returns:
        How many numbers would be trained otherwise.

    Raises:
        FreezeError: One matches nothing, or all parameters are frozen.
    """
    if not patterns:
        return 0
    names = [name for name, _ in network.named_parameters()]
    for pattern in patterns:
        if not any(is_named(name, pattern) for name in names):
            raise FreezeError(
                f"learner.freeze={pattern}: no parameter or module of the network has this name; "
                f"{suggest_part(pattern, names)}"
            )
    num_frozen = 0
    for name, parameter in network.named_parameters():
        if parameter.requires_grad and any(is_named(name, pattern) for pattern in patterns):
            parameter.requires_grad_(False)
            num_frozen += parameter.numel()
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise FreezeError(f"learner.freeze={','.join(patterns)}: all parameters are frozen, so nothing is learned")
    return num_frozen

"""A module's parameters and buffers as one block of bytes, so that publishing and loading weights is one copy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

_ALIGNMENT = 64


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    """Parameters, then persistent buffers, in a fixed order, without duplicates."""
    yield from module.parameters()
    persistent = set(module.state_dict(keep_vars=True))
    for name, buffer in module.named_buffers():
        if name in persistent:
            yield buffer


def flat_nbytes(module: nn.Module) -> int:
    """Bytes that :class:`FlatState` allocates for a module."""
    return sum(_padded(t.numel() * t.element_size()) for t in _tensors(module))


def _padded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def in_wire_format(flat: Tensor, shape: torch.Size) -> Tensor:
    """View a slice of the block as a tensor of this shape, in the layout that both ends of a copy use.

    Four axes are channels_last, whatever the memory format of either end: an aliased convolution then needs no
    reordering in its forward pass.
    """
    if len(shape) != 4:
        return flat.view(shape)
    count, channels, height, width = shape
    return flat.view(count, height, width, channels).permute(0, 3, 1, 2)


class FlatState:
    """One byte buffer that mirrors a module.

    Args:
        module: The module to mirror.
        alias: Whether the module's tensors become views of the buffer (CPU only). An inference copy is aliased, so
            bytes read into the buffer are immediately in the module, and so is a parameter server's module, so its
            optimiser writes into the buffer. A learner's acting network is not aliased; :meth:`pack` copies it.
    """

    def __init__(self, module: nn.Module, *, alias: bool) -> None:
        """Allocate the buffer and fill it with the module's values."""
        device = next(_tensors(module)).device
        # For a module on a GPU a second buffer makes the transfer one copy.
        self._near = torch.zeros(flat_nbytes(module), dtype=torch.uint8, device=device)
        self._flat = self._near if device.type == "cpu" else torch.zeros_like(self._near, device="cpu", pin_memory=True)
        self._pairs: list[tuple[Tensor, Tensor]] = []
        offset = 0
        for tensor in _tensors(module):
            nbytes = tensor.numel() * tensor.element_size()
            view = self._near[offset : offset + nbytes].view(tensor.dtype)
            self._pairs.append((in_wire_format(view, tensor.shape), tensor))
            offset += _padded(nbytes)
        self.pack()
        if alias:
            for view, tensor in self._pairs:
                if tensor.device.type != "cpu":
                    raise ValueError(f"a tensor on {tensor.device} cannot alias host memory; use unpack() instead.")
                tensor.data = view

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """The buffer, uint8 ``[nbytes]``; writing into it changes an aliased module."""
        return cast("NDArray[np.uint8]", self._flat.numpy())

    @torch.no_grad()
    def pack(self) -> None:
        """Copy the module's values into the buffer; blocks until they have arrived."""
        _copy_all([(view, tensor) for view, tensor in self._pairs if tensor.data_ptr() != view.data_ptr()])
        if self._flat is not self._near:
            self._flat.copy_(self._near)

    @torch.no_grad()
    def unpack(self) -> None:
        """Copy the buffer into those tensors of the module that are not views of it.

        The buffer may be overwritten when this returns. Without ``alias``, on another device, or after a change of
        dtype a tensor is not a view.
        """
        if self._flat is not self._near:
            self._near.copy_(self._flat)
        _copy_all([(tensor, view) for view, tensor in self._pairs if tensor.data_ptr() != view.data_ptr()])


def _copy_all(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Copy each second tensor into the first, in one call for each pair of dtypes: CUDA has no kernel for a mixture."""
    by_dtype: defaultdict[tuple[torch.dtype, torch.dtype], list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for target, source in pairs:
        by_dtype[target.dtype, source.dtype].append((target, source))
    for group in by_dtype.values():
        torch._foreach_copy_([target for target, _ in group], [source for _, source in group])

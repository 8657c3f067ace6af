"""A CUDA device made of CPU tensors, for machines without a GPU.

Within ``with FakeCuda() as gpu:`` tensors are real CPU tensors, and each storage remembers whether it stands for memory
of the host or of the GPU. ``Tensor.device`` says what is remembered, so that code takes its CUDA branches. Operations
that mix the two raise :class:`MixedDevicesError`, as CUDA does. ``gpu.counts`` says what would have happened: kernels,
copies, and moments at which the host waits for the GPU.

It consists of three parts: patched attributes of torch (:func:`_patches`), a ``TorchFunctionMode`` that answers for
functions with a ``device`` argument, and a ``TorchDispatchMode`` that looks at the tensors of each operation. Modes
belong to a thread; threads that start meanwhile get them, too.

It cannot see races between streams, the reuse of page-locked memory, what cuDNN does, or kernels that CUDA lacks. A
recurrent layer is one call of cuDNN there and many operations here. Kernels are the CPU's, so values differ from those
of a real GPU by rounding.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
# They carry an operand from one device to the other.
_COPIES = {"aten::copy_", "aten::_foreach_copy_"}
# CUDA takes indices from the host, after a blocking copy.
_INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
# Their result, or its shape, is read by the host.
_WAITING = {
    "aten::_local_scalar_dense",
    "aten::equal",
    "aten::is_nonzero",
    "aten::masked_select",
    "aten::nonzero",
    "aten::_unique2",
}
# cuDNN's warning, which tests make an error.
_SCATTERED = "RNN module weights are not part of single contiguous chunk of memory"
_NO_KERNEL = {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided"}


class MixedDevicesError(RuntimeError):
    """An operation was given tensors of both devices, or one of the GPU where only the host's are allowed."""


class Counts:
    """What has happened since the last :meth:`reset`.

    Attributes:
        operations: Name -> how often: kernels of the GPU, one for each operation that is no view.
        uploads: Copies from the host to the GPU.
        downloads: Copies from the GPU to the host.
        waits: Reason and place -> how often the host waited until the GPU had done all that was asked of it before.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Starts at 0."""
        self.operations: collections.Counter[str] = collections.Counter()
        self.uploads = self.downloads = 0
        self.waits: collections.Counter[str] = collections.Counter()

    def summary(self) -> dict[str, int]:
        """The number of each kind."""
        return {
            "operations": self.operations.total(),
            "uploads": self.uploads,
            "downloads": self.downloads,
            "waits": self.waits.total(),
        }


class FakeCuda:
    """The device; a context manager.

    Args:
        device_count: What ``torch.cuda.device_count`` says.

    Attributes:
        counts: What has happened.
    """

    def __init__(self, device_count: int = 1) -> None:
        self.counts = Counts()
        self._device_count = device_count
        self._on_gpu = _Storages()
        self._pinned: dict[int, tuple[int, StorageWeakRef]] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> FakeCuda:
        """Patches torch, and enters the modes in this thread."""
        for owner, name, value in _patches(self, self._device_count):
            self._stack.enter_context(_attribute(owner, name, value))
        self._stack.enter_context(_attribute(threading.Thread, "run", self._with_modes(threading.Thread.run)))
        self._stack.enter_context(self._modes())
        return self

    def __exit__(self, *error: object) -> None:
        """Restores torch."""
        self._stack.close()

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor is on the GPU."""
        return tensor in self._on_gpu

    def is_pinned(self, tensor: Tensor) -> bool:
        """Whether a tensor is in page-locked memory, also as a view through NumPy."""
        with torch._C.DisableTorchFunction():
            address = tensor.data_ptr()
        ranges = list(self._pinned.items())
        return any(first <= address < end and not alive.expired() for first, (end, alive) in ranges)

    def move(self, tensor: Tensor, device: torch.device, *, non_blocking: bool, **changes: Any) -> Tensor:
        """``tensor.to(device)`` between the two devices; ``changes`` are its other arguments."""
        to_gpu = device.type == "cuda"
        if to_gpu:
            self.count_upload(tensor, non_blocking=non_blocking)
        else:
            self.count_download()
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            moved = tensor.clone().to(**changes)
        if to_gpu:
            self.tag(moved)
        return moved

    def tag(self, tensor: Tensor) -> Tensor:
        """Says that a new tensor is on the GPU."""
        self._on_gpu.add(tensor)
        return tensor

    def pin(self, tensor: Tensor) -> Tensor:
        """Says that a new tensor is page-locked."""
        with torch._C.DisableTorchFunction():
            storage = torch._C.TensorBase.untyped_storage(tensor)
            first = storage.data_ptr()
            self._pinned[first] = first + storage.nbytes(), StorageWeakRef(storage)
        return tensor

    def count_upload(self, source: Tensor, *, non_blocking: bool) -> None:
        """A copy to the GPU; the host awaits it unless the memory is page-locked and ``non_blocking`` is set."""
        self.counts.uploads += 1
        if not (non_blocking and self.is_pinned(source)):
            self.wait("upload from pageable memory" if non_blocking else "blocking upload")

    def count_download(self) -> None:
        """A copy to the host, which has to wait for it before it reads."""
        self.counts.downloads += 1
        self.wait("download")

    def wait(self, reason: str) -> None:
        """The host waits for the GPU."""
        self.counts.waits[f"{reason} at {_place()}"] += 1

    @contextlib.contextmanager
    def _modes(self) -> Iterator[None]:
        with _Functions(self), _Operations(self):
            yield

    def _with_modes(self, run: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
        def run_with_modes(thread: threading.Thread) -> None:
            with self._modes():
                run(thread)

        return run_with_modes


class _Storages:
    """A set of storages; weak references keep an address from being used again while it is remembered."""

    def __init__(self) -> None:
        self._alive: dict[int, StorageWeakRef] = {}

    def add(self, tensor: Tensor) -> None:
        with torch._C.DisableTorchFunction():
            storage = torch._C.TensorBase.untyped_storage(tensor)
            self._alive[storage._cdata] = StorageWeakRef(storage)
        if len(self._alive) % 1024 == 0:
            self._alive = {key: ref for key, ref in list(self._alive.items()) if not ref.expired()}

    def __contains__(self, tensor: Tensor) -> bool:
        with torch._C.DisableTorchFunction():
            found = self._alive.get(torch._C.TensorBase.untyped_storage(tensor)._cdata)
        return found is not None and not found.expired()


class _Operations(TorchDispatchMode):
    """Looks at each operation's tensors: refuses mixes, counts, and tags what it makes."""

    def __init__(self, gpu: FakeCuda) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        on_gpu = [self._gpu.holds(t) for t in tensors]
        if not any(on_gpu):
            return func(*args, **kwargs)
        name = func._schema.name
        if name in _COPIES:
            self._copy(name, args, kwargs)
            return func(*args, **kwargs)
        self._check(name, tensors, on_gpu)
        if name.startswith("aten::_fused_adam"):
            _check_strides(name, args)
        self._count(func, name, tensors)
        result = func(*args, **kwargs)
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and not self._gpu.holds(tensor):
                self._gpu.tag(tensor)
        return result

    def _copy(self, name: str, args: Any, kwargs: Any) -> None:
        self._gpu.counts.operations[name] += 1
        targets, sources = (x if isinstance(x, (list, tuple)) else [x] for x in args[:2])
        non_blocking = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        if len({t.dtype for t in (*targets, *sources)}) > 1 and name == "aten::_foreach_copy_":
            # CUDA falls back to a copy for each tensor.
            self._gpu.counts.operations[name] += len(targets) - 1
        for target, source in zip(targets, sources, strict=True):
            if self._gpu.holds(target) and not self._gpu.holds(source):
                self._gpu.count_upload(source, non_blocking=non_blocking)
            elif self._gpu.holds(source) and not self._gpu.holds(target):
                self._gpu.count_download()

    def _check(self, name: str, tensors: list[Tensor], on_gpu: list[bool]) -> None:
        for tensor, is_on_gpu in zip(tensors, on_gpu, strict=True):
            # CUDA's kernels take a scalar of the host as a number.
            if is_on_gpu or tensor.dim() == 0:
                continue
            if name in _INDEXING and on_gpu[0] and not tensor.is_floating_point():
                self._gpu.count_upload(tensor, non_blocking=False)
                continue
            places = [f"{tuple(t.shape)} on {'cuda' if g else 'cpu'}" for t, g in zip(tensors, on_gpu, strict=True)]
            raise MixedDevicesError(f"{name} of tensors on both devices: {', '.join(places)}")

    def _count(self, func: Any, name: str, tensors: list[Tensor]) -> None:
        is_view = any(a.alias_info is not None and not a.alias_info.is_write for a in func._schema.arguments)
        if not is_view and name not in _NO_KERNEL and name not in ("aten::_unsafe_view", "aten::lift_fresh"):
            self._gpu.counts.operations[name] += 1
        has_mask = name in _INDEXING and any(t.dtype in (torch.bool, torch.uint8) for t in tensors[1:])
        if name in _WAITING or (has_mask and tensors[0].dtype not in (torch.bool, torch.uint8)):
            self._gpu.wait(name)


def _check_strides(name: str, args: Any) -> None:
    """CUDA's fused optimisers need parameters, gradients and moments in the same layout; the CPU's update wrongly."""
    for parameter, *others in zip(*args[:4], strict=True):
        for other in others:
            strides = zip(parameter.shape, parameter.stride(), other.stride(), strict=True)
            if any(size > 1 and mine != its for size, mine, its in strides):
                raise RuntimeError(f"{name} with strides {parameter.stride()} and {other.stride()}")


class _Functions(TorchFunctionMode):
    """Answers for functions that name a device, and for those that no operation shows."""

    def __init__(self, gpu: FakeCuda) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        gpu, kwargs = self._gpu, dict(kwargs or {})
        if func is Tensor.to:
            return self._to(*args, **kwargs)
        if func is Tensor.cpu:
            return self._to(args[0], CPU)
        if func is Tensor.cuda:
            return self._to(args[0], CUDA, non_blocking=kwargs.get("non_blocking", False))
        if func is Tensor.is_pinned:
            return gpu.is_pinned(args[0])
        if func in (Tensor.numpy, Tensor.__array__, Tensor.pin_memory) and gpu.holds(args[0]):
            raise MixedDevicesError(f"{func.__name__}() of a tensor on cuda")
        if func is Tensor.pin_memory:
            return gpu.pin(args[0].clone())
        if func is Tensor.tolist and gpu.holds(args[0]):
            gpu.wait("tolist()")
        if func is Tensor.backward:
            # The function would ask this mode again.
            with self:
                return torch.autograd.backward(args[0], inputs=kwargs.get("inputs"))
        if func is Tensor.__deepcopy__ and gpu.holds(args[0]):
            return gpu.tag(func(*args, **kwargs))
        if func in (torch.gru, torch.lstm) and gpu.holds(args[0]) and len(set(map(_storage_of, args[2]))) > 1:
            warnings.warn(_SCATTERED, stacklevel=2)
        self._check_generator(args, kwargs)
        if "device" in kwargs or "pin_memory" in kwargs:
            return self._make(func, args, kwargs)
        return func(*args, **kwargs)

    def _to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """``Tensor.to`` in each of its three forms."""
        if args and isinstance(args[0], Tensor):
            args = CUDA if self._gpu.holds(args[0]) else CPU, args[0].dtype, *args[1:]
        device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(
            *args, **{name: value for name, value in kwargs.items() if name not in ("copy", "device")}
        )
        copy = kwargs.get("copy", False)
        device = torch.device(kwargs["device"]) if kwargs.get("device") is not None else device
        changes = {
            "dtype": dtype or tensor.dtype,
            "copy": copy,
            "memory_format": memory_format or torch.preserve_format,
        }
        if device is None or (device.type == "cuda") == self._gpu.holds(tensor):
            return torch.Tensor.to(tensor, **changes)
        return self._gpu.move(tensor, device, non_blocking=non_blocking, **changes)

    def _make(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """A function with a device argument, which makes a tensor."""
        device, pins = kwargs.pop("device", None), kwargs.pop("pin_memory", False)
        like = args[0] if args and isinstance(args[0], Tensor) else None
        if func is torch.as_tensor and like is not None:
            return self._to(like, **kwargs) if device is None else self._to(like, device, **kwargs)
        is_on_gpu = self._gpu.holds(like) if device is None and like is not None else _is_cuda(device)
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            made = func(*args, **kwargs)
        if is_on_gpu:
            if func in (torch.tensor, torch.as_tensor, Tensor.new_tensor):
                self._gpu.count_upload(made, non_blocking=False)
            elif not func.__name__.startswith(("empty", "new_empty")):
                self._gpu.counts.operations[func.__name__] += 1
            self._gpu.tag(made)
        return self._gpu.pin(made) if pins else made

    def _check_generator(self, args: Any, kwargs: dict[str, Any]) -> None:
        generator = kwargs.get("generator")
        if not isinstance(generator, _Generator):
            return
        tensor = args[0] if args and isinstance(args[0], Tensor) else None
        where = _is_cuda(kwargs.get("device")) if tensor is None else self._gpu.holds(tensor)
        if _is_cuda(generator.device) != where:
            raise MixedDevicesError(f"a generator on {generator.device} for a tensor on another device")


class _Generator(torch.Generator):
    """The CPU's random numbers, wherever it says to be."""

    _place: torch.device

    def __new__(cls, device: Any = "cpu") -> _Generator:
        made: _Generator = super().__new__(cls)
        made._place = CUDA if _is_cuda(device) else CPU
        return made

    def __init__(self, device: Any = "cpu") -> None:
        pass

    @property
    def device(self) -> torch.device:
        return self._place


class _Autocast(torch.autocast):
    """The CPU's, whose list of operations is not quite CUDA's."""

    def __init__(self, device_type: str, *args: Any, **kwargs: Any) -> None:
        super().__init__("cpu", *args, **kwargs)


class _Stream:
    """A stream, or an event: there is one, and everything in it is done."""

    def __init__(self, gpu: FakeCuda) -> None:
        self._gpu = gpu

    def synchronize(self) -> None:
        self._gpu.wait("synchronize()")


class _Properties(NamedTuple):
    """What distinguishes a GPU from others."""

    uuid: str = "GPU-of-no-one"


def _patches(gpu: FakeCuda, device_count: int) -> list[tuple[Any, str, Any]]:
    """Owner, name and value of what torch is told to say."""
    is_enabled, dtype_of = torch.is_autocast_enabled, torch.get_autocast_dtype
    group = torch.optim.Optimizer._group_tensors_by_device_and_dtype

    def grouped(lists: Any, with_indices: bool = False) -> Any:
        found = group(lists, with_indices)
        return {(CUDA if gpu.holds(v[0][0][0]) else key[0], key[1]): v for key, v in found.items()}

    cuda = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: device_count,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: gpu.wait("synchronize()"),
        "current_stream": lambda device=None: _Stream(gpu),
        "empty_cache": lambda: None,
        "mem_get_info": lambda device=None: (70 << 30, 80 << 30),
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_properties": lambda device=None: _Properties(),
        "get_rng_state_all": list,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: None,
    }
    return [
        (Tensor, "device", property(lambda tensor: CUDA if gpu.holds(tensor) else CPU)),
        (Tensor, "is_cuda", property(gpu.holds)),
        (Tensor, "is_cpu", property(lambda tensor: not gpu.holds(tensor))),
        (Tensor, "get_device", lambda tensor: 0 if gpu.holds(tensor) else -1),
        (torch, "Generator", _Generator),
        (torch, "autocast", _Autocast),
        (torch.amp, "autocast", _Autocast),
        (torch, "is_autocast_enabled", lambda device=None: is_enabled("cpu")),
        (torch, "get_autocast_dtype", lambda device=None: dtype_of("cpu")),
        (torch.optim.Optimizer, "_group_tensors_by_device_and_dtype", staticmethod(grouped)),
        (nn.RNNBase, "flatten_parameters", lambda layer: _flatten(gpu, layer)),
        *((torch.cuda, name, value) for name, value in cuda.items()),
    ]


def _flatten(gpu: FakeCuda, layer: nn.RNNBase) -> None:
    """As with cuDNN: one storage for all weights of a recurrent layer that is on the GPU."""
    weights = list(layer._flat_weights)
    if not all(isinstance(w, Tensor) and gpu.holds(w) for w in weights):
        return
    with torch.no_grad(), torch._C.DisableTorchFunction(), _disable_current_modes():
        joined = torch.cat([w.detach().reshape(-1) for w in weights])
        gpu.tag(joined)
        for weight, part in zip(weights, joined.split([w.numel() for w in weights]), strict=True):
            weight.data = part.view(weight.shape)


@contextlib.contextmanager
def _attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Sets an attribute, and restores what the owner itself had."""
    before = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _storage_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _place() -> str:
    """The line of Rollmill that is being executed."""
    frames = [f for f in traceback.extract_stack() if "/src/rollmill/" in f.filename]
    return f"{frames[-1].filename.split('/rollmill/')[-1]}:{frames[-1].lineno}" if frames else "a test"

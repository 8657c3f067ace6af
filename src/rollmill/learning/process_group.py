"""The ranks of a run as a torch.distributed group, with detection of lost ranks.

Small items go through gloo on the CPU; gradients, too, or through NCCL between GPUs. A failing collective call does not
say why it failed, so each rank also increments a counter of its own in the run's key-value store, from a thread: after
a failure, a rank whose counter does not change is lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from rollmill.runtime.plain_data import decode, encode
from rollmill.runtime.ranks import Ranks, RanksError

Item = TypeVar("Item")
Dtype = TypeVar("Dtype", bound=np.generic)

_BEAT_S = 0.5
# After a failure: seconds without a beat after which a rank counts as lost.
_SILENT_S = 4 * _BEAT_S
_STORE_TIMEOUT_S = 10.0
_LOOPBACK = "127.0.0.1"
# ioctl_list(2), netdevice(7): the IPv4 address of an interface.
_SIOCGIFADDR, _IFREQ_SIZE = 0x8915, 40
# Maximum delay between programs that are started together.
_MEETING_S = 120.0
# A launcher hosts the store longer than the ranks live: if it cannot be reached, it has died.
_LAUNCHER_S = 30.0


class RankLostError(RuntimeError):
    """A rank of the run does not respond."""


def open_store(ranks: Ranks, purpose: str, timeout_s: float, *, is_host: bool = False) -> Any:
    """Open the run's key-value store, hosted by ``torchrun`` or by rank 0's :func:`meeting`.

    Args:
        ranks: This process's rank.
        purpose: Namespace of keys; each start of a run has its own, too.
        timeout_s: Timeout for the other ranks to connect, and for each request.
        is_host: Whether this process hosts the store.

    Returns:
        A ``torch.distributed.Store``.

    Raises:
        RankLostError: The host of the store cannot be reached.
    """
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # not declared as exported

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    listener: int | None = None
    if ranks.is_one_host and not _launcher_keeps_store():
        address = _LOOPBACK
        if is_host:
            # By default, the store listens on every interface.
            listener = _listen_on_loopback(port)
    connect_s = min(timeout_s, _LAUNCHER_S) if _launcher_keeps_store() else timeout_s
    try:
        store = TCPStore(
            address,
            port,
            ranks.world_size,
            is_master=is_host,
            wait_for_workers=False,
            timeout=timedelta(seconds=connect_s / 2),  # it tries twice
            master_listen_fd=listener,
        )
    except dist.DistNetworkError as error:
        keeper = "torchrun" if _launcher_keeps_store() else "rank 0"
        raise RankLostError(
            f"rank {ranks.rank} could not reach {keeper} at {address}:{port} within {connect_s:g} s: start all ranks, "
            f"and check that {keeper} still runs and that this port is open between the machines"
        ) from error
    store.set_timeout(timedelta(seconds=timeout_s))
    return PrefixStore(f"rollmill/{ranks.restarts}/{ranks.runs_before}/{purpose}", store)


@contextmanager
def meeting(ranks: Ranks) -> Iterator[Callable[[str, Callable[[], Item]], Item]]:
    """Context manager for a rank's whole program: host the run's store if the launcher does not.

    Yields :func:`exchange` for these ranks.
    """
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, ranks.cores(sorted(cores)))
    is_host = ranks.rank == 0 and not _launcher_keeps_store()
    store = open_store(ranks, "meeting", _MEETING_S, is_host=is_host)
    try:
        yield lambda key, make: exchange(ranks, key, make, _MEETING_S)
    finally:
        os.sched_setaffinity(0, cores)
        del store


def exchange(ranks: Ranks, key: str, make: Callable[[], Item], timeout_s: float) -> Item:
    """Return rank 0's item on every rank; for processes without a group.

    Args:
        ranks: This process's rank.
        key: Name of the item; used once in a run's start.
        make: Called on rank 0; returns plain data, see :mod:`rollmill.runtime.plain_data`.
        timeout_s: Timeout for rank 0.

    Raises:
        RankLostError: Timed out.
    """
    store = open_store(ranks, "exchange", timeout_s)
    if ranks.rank == 0:
        made = make()
        store.set(key, encode(made))
        return made
    try:
        item: Item = decode(store.get(key))
    except RuntimeError as error:
        raise RankLostError(f"rank {ranks.rank} timed out waiting for rank 0's {key}: {_first_line(error)}") from error
    return item


def compare(ranks: Ranks, key: str, item: Item, timeout_s: float) -> list[Item]:
    """Return every rank's item on every rank; for processes without a group.

    Args:
        ranks: This process's rank.
        key: Name of the item; used once in a run's start.
        item: This rank's item; plain data, see :mod:`rollmill.runtime.plain_data`.
        timeout_s: Timeout for each other rank.

    Raises:
        RankLostError: Timed out.
    """
    store = open_store(ranks, "compare", timeout_s)
    store.set(f"{key}/{ranks.rank}", encode(item))
    try:
        return [decode(store.get(f"{key}/{rank}")) for rank in range(ranks.world_size)]
    except RuntimeError as error:
        raise RankLostError(
            f"rank {ranks.rank} timed out waiting for the other ranks' {key}: {_first_line(error)}"
        ) from error


class ProcessGroup:
    """See :class:`rollmill.learning.collective.Collective`.

    Args:
        ranks: This process's rank.
        device: Device of gradients.
        timeout_s: Seconds without a response after which a rank is lost.

    Attributes:
        shares_gpu: Whether several ranks compute on the same GPU.
    """

    def __init__(self, ranks: Ranks, device: torch.device, timeout_s: float) -> None:
        """Connect to the other ranks.

        Raises:
            RankLostError: Not all ranks connected.
        """
        self.rank, self.world_size = ranks.rank, ranks.world_size
        self._ranks = ranks
        self._calls = 0
        self._names = [f"rank {rank}" for rank in range(ranks.world_size)]
        self._beats = open_store(ranks, "beats", _STORE_TIMEOUT_S)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()
        # gloo would use the address of the host's name, which on many machines no other machine can reach, and on
        # others every machine can.
        address = _LOOPBACK if ranks.is_one_host else os.environ["MASTER_ADDR"]
        if interface := interface_towards(address, int(os.environ["MASTER_PORT"])):
            for library in ("GLOO", "NCCL") if ranks.is_one_host else ("GLOO",):
                os.environ.setdefault(f"{library}_SOCKET_IFNAME", interface)
        with self._naming_the_lost():
            wait = timedelta(seconds=timeout_s)
            store = open_store(ranks, "learners", timeout_s)
            devices = compare(ranks, "devices", _identity(device), timeout_s)
            backend, self.shares_gpu = backend_for(devices)
            dist.init_process_group(backend, store=store, rank=ranks.rank, world_size=ranks.world_size, timeout=wait)
            self._small = dist.new_group(backend="gloo", timeout=wait) if backend == "nccl" else None
            hosts = self.gather(socket.gethostname())
        self._names = [f"rank {rank} (host {host})" for rank, host in enumerate(hosts)]

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum over the ranks."""
        total = tensor.clone()
        with self._naming_the_lost():
            # NCCL takes nothing from the memory of the CPU.
            dist.all_reduce(total, group=self._small if total.device.type == "cpu" else None)
        return total

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter], statistics: Tensor) -> Tensor:
        """Sum gradients in one message, which also carries which of them exist."""
        absent = [p.grad is None for p in parameters]
        parts = [p.new_zeros(p.numel()) if p.grad is None else p.grad.reshape(-1) for p in parameters]
        # Usually all do, and then the host does not wait for a copy to the device.
        present = [not is_absent for is_absent in absent]
        has_gradient = parts[0].new_tensor(present) if any(absent) else parts[0].new_ones(len(parts))
        flat = torch.cat([*parts, has_gradient, statistics.to(parts[0].dtype)])
        with self._naming_the_lost():
            dist.all_reduce(flat)
        sizes = [*(p.numel() for p in parameters), len(parameters), len(statistics)]
        *summed, ranks_with_gradient, totals = torch.split(flat, sizes)
        # The host waits for these numbers only if one of its own gradients is missing.
        counts = ranks_with_gradient.tolist() if any(absent) else [1.0] * len(parameters)
        for parameter, total, count in zip(parameters, summed, counts, strict=True):
            if parameter.grad is None and count > 0:
                # In the parameter's memory layout, because fused optimisers read both in storage order.
                parameter.grad = torch.empty_like(parameter)
            if parameter.grad is not None:
                parameter.grad.copy_(total.view(parameter.shape))
        return totals.to(statistics.dtype)

    def columns(self, array: NDArray[Dtype]) -> NDArray[Dtype]:
        """Concatenate the arrays of all ranks."""
        mine = torch.from_numpy(np.ascontiguousarray(array))
        all_of_them = [torch.empty_like(mine) for _ in range(self.world_size)]
        with self._naming_the_lost():
            dist.all_gather(all_of_them, mine, group=self._small)
        joined: NDArray[Dtype] = np.concatenate([part.numpy() for part in all_of_them], axis=1)
        return joined

    def gather(self, item: Item) -> list[Item]:
        """Return each rank's item."""
        message = _bytes(encode(item))
        with self._naming_the_lost():
            sizes = torch.zeros(self.world_size, dtype=torch.int64)
            sizes[self.rank] = len(message)
            dist.all_reduce(sizes, group=self._small)
            # Gathered parts must have one size.
            padded = torch.zeros(int(sizes.max()), dtype=torch.uint8)
            padded[: len(message)] = message
            parts = [torch.empty_like(padded) for _ in range(self.world_size)]
            dist.all_gather(parts, padded, group=self._small)
        return [decode(part[:size].numpy().data) for part, size in zip(parts, sizes.tolist(), strict=True)]

    def broadcast(self, item: Item) -> Item:
        """Return rank 0's item."""
        message = _bytes(encode(item)) if self.rank == 0 else torch.empty(0, dtype=torch.uint8)
        size = torch.tensor([len(message)])
        with self._naming_the_lost():
            dist.broadcast(size, src=0, group=self._small)
            if self.rank:
                message = torch.empty(int(size), dtype=torch.uint8)
            dist.broadcast(message, src=0, group=self._small)
        if not self.rank:
            return item
        received: Item = decode(message.numpy().data)
        return received

    def close(self) -> None:
        """Leave the group; other ranks may have left before."""
        self._stop.set()
        self._thread.join(timeout=_STORE_TIMEOUT_S)
        dist.destroy_process_group()

    def lost(self) -> list[str]:
        """Return the names of ranks whose counters do not change; takes a few seconds."""
        counts: list[list[int]] = []
        calls: list[int] = []

        def look_twice() -> None:
            with contextlib.suppress(Exception):
                for pause in (0.0, _SILENT_S):
                    time.sleep(pause)
                    counts.append([self._beats.add(str(rank), 0) for rank in range(self.world_size)])
                calls.extend(self._beats.add(f"calls/{rank}", 0) for rank in range(self.world_size))

        # In a thread, because a store on a disconnected machine never responds, whatever its timeout.
        looking = threading.Thread(target=look_twice, name="who is lost", daemon=True)
        looking.start()
        looking.join(timeout=_STORE_TIMEOUT_S)
        if len(counts) < 2:
            # Rank 0's machine hosts the store, as in torchrun.
            return [f"{self._names[0]}, or the machine that hosts the run's store"]
        before, after = counts
        others = [rank for rank in range(self.world_size) if rank != self.rank]
        silent = [self._names[rank] for rank in others if after[rank] == before[rank]]
        if silent or not calls:
            return silent
        # All ranks live: the ones behind wait for their own environments.
        furthest = max(calls)
        return [f"{self._names[rank]}, which is alive but late" for rank in others if calls[rank] < furthest]

    @contextmanager
    def _naming_the_lost(self) -> Iterator[None]:
        """Convert torch's errors into an error that names the lost ranks."""
        self._calls += 1
        try:
            yield
        except RuntimeError as error:
            lost = self.lost() or ["a rank that is alive but out of step"]
            raise RankLostError(
                f"rank {self.rank} got no response from {' and '.join(lost)}: {_first_line(error)}. The run ends; "
                "resume it with --resume; torchrun --max-restarts resumes it automatically."
            ) from error

    def _beat(self) -> None:
        # A separate connection: a pending request would block the others.
        store = open_store(self._ranks, "beats", _STORE_TIMEOUT_S)
        told = 0
        while not self._stop.wait(_BEAT_S):
            try:
                store.add(str(self.rank), 1)
                calls = self._calls
                store.add(f"calls/{self.rank}", calls - told)
                told = calls
            except Exception:  # the next store operation reports the failure
                return


def backend_for(devices: Sequence[str]) -> tuple[str, bool]:
    """Choose how gradients are exchanged: NCCL wants a GPU for each rank.

    Args:
        devices: Identity of each rank's GPU; empty on a CPU.

    Returns:
        Name of torch's backend, and whether ranks share a GPU.
    """
    gpus = [device for device in devices if device]
    shares_gpu = len(set(gpus)) < len(gpus)
    return ("nccl" if len(gpus) == len(devices) and not shares_gpu else "gloo"), shares_gpu


def _identity(device: torch.device) -> str:
    """The GPU's own number, whatever this process calls it; empty on a CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def _launcher_keeps_store() -> bool:
    """Whether ``torchrun`` hosts the run's store and chooses the address."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _listen_on_loopback(port: int) -> int:
    """Open a listening socket on loopback, as a file descriptor.

    Raises:
        RanksError: The port is in use.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((_LOOPBACK, port))
        except OSError as error:
            raise RanksError(
                f"MASTER_PORT={port} cannot be listened on ({error.strerror}): choose a port that is free"
            ) from error
        listener.listen(socket.SOMAXCONN)
        return listener.detach()


def interface_towards(address: str, port: int) -> str | None:
    """Return the name of the network interface that reaches an address; None if unknown."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)  # a datagram socket: nothing is sent
            own = probe.getsockname()[0]
            for _, name in socket.if_nameindex():
                request = name.encode().ljust(_IFREQ_SIZE, b"\0")
                try:
                    answer = fcntl.ioctl(probe, _SIOCGIFADDR, request)
                except OSError:
                    continue  # no address of this family
                if socket.inet_ntoa(answer[20:24]) == own:
                    return name
    except OSError:
        pass
    return None


def _bytes(message: bytes) -> Tensor:
    return torch.frombuffer(bytearray(message), dtype=torch.uint8)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]

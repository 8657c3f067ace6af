"""Prioritised replays of other systems, interleaved: python benchmarks/replay_peers.py --capacities 10000 1000000.

Each peer runs in an environment of its own (``.venv-peers-replay-cpprb``, ...), made by the first run; one that does
not install or load is reported as absent, with the reason. All hold the same transitions (eight float32 as observation)
and are filled before time is taken. Then they take turns, round after round on the same core with one thread, so that a
slow minute of the machine hits all of them: in each iteration a buffer takes 64 transitions, gives a batch (indices,
importance weights, observation, action, reward, next observation, terminated) and takes its new priorities. Each figure
is the median over the rounds of the median microseconds of the calls from Python that this takes. Transitions and TD
errors are given as NumPy arrays; batches are what the peer makes of them, NumPy's arrays or torch's tensors.

``--verify`` checks instead that each peer samples in proportion to ``priority ** 0.6`` and that its weights are right.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any

_ROOT = Path(__file__).resolve().parent.parent
_END_SECONDS = 10.0
_PEERS = _ROOT / "benchmarks" / "peers"
_FILL_SECONDS = 1800  # to start and be filled
_OVERHEAD_SECONDS = 120  # of a round, besides its length

OPERATIONS = ("sample", "update", "insert64")


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A prioritised replay to compare with.

    Attributes:
        name: For the table.
        script: In ``benchmarks/peers``, or an absolute path.
        environment: Folder of its virtual environment below the one with all of them; empty: this interpreter.
        requirements: What is installed there.
        imports: What must import for it to be there.
        build: A script in ``benchmarks/peers`` that its interpreter runs after the installation.
        arguments: Further ones of the script, say ``("--variant", "double")``.
        greatest_capacity: Beyond it the peer is absent, because its transitions are Python objects.
    """

    name: str
    script: str
    environment: str = ""
    requirements: str = ""
    imports: str = "numpy"
    build: str = ""
    arguments: tuple[str, ...] = ()
    greatest_capacity: int | None = None

    def python(self, environments: Path) -> Path:
        """Its interpreter."""
        return environments / self.environment / "bin" / "python" if self.environment else Path(sys.executable)


PEERS = (
    Peer(
        name="cpprb",
        script="replay_cpprb.py",
        environment=".venv-peers-replay-cpprb",
        requirements="requirements-replay-cpprb.txt",
        imports="cpprb",
    ),
    Peer(
        name="tianshou",
        script="replay_tianshou.py",
        environment=".venv-peers-replay-tianshou",
        requirements="requirements-replay-tianshou.txt",
        imports="tianshou.data",
    ),
    Peer(
        name="torchrl",
        script="replay_torchrl.py",
        environment=".venv-peers-replay-torchrl",
        requirements="requirements-replay-torchrl.txt",
        imports="torch, torchrl._torchrl, torchrl.data",
        build="build_torchrl_extension.py",
    ),
    Peer(
        name="rllib",
        script="replay_rllib.py",
        environment=".venv-peers-replay-rllib",
        requirements="requirements-replay-rllib.txt",
        imports="ray.rllib.utils.replay_buffers",
        greatest_capacity=1_000_000,
    ),
    Peer(name="numpy-binary-tree", script="replay_numpy.py"),
)


class AbsentError(Exception):
    """A peer cannot be measured; says why."""


def _last_lines(text: str, count: int) -> str:
    return " | ".join(line.strip() for line in text.strip().splitlines()[-count:])


def install(peer: Peer, environments: Path = _ROOT) -> None:
    """Makes the peer's virtual environment, unless it is there and whole.

    Raises:
        AbsentError: It does not install, or does not import.
    """
    python = str(peer.python(environments))
    check = [python, "-c", f"import {peer.imports}"]
    if Path(python).exists() and subprocess.run(check, capture_output=True).returncode == 0:
        return
    if not peer.environment:
        raise AbsentError(f"{python} does not import {peer.imports}")
    print(f"installing {peer.name} into {environments / peer.environment}", file=sys.stderr, flush=True)
    venv.create(environments / peer.environment, with_pip=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    commands = [[*pip, "-r", str(_PEERS / peer.requirements)]]
    if peer.build:
        commands.append([python, str(_PEERS / peer.build)])
    for command in (*commands, check):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise AbsentError("does not install: " + _last_lines(done.stderr, 3))


class _Process:
    """A peer's script that has filled its buffer and waits for rounds."""

    def __init__(self, command: list[str]) -> None:
        # Open as long as the process runs, and closed with it: no block holds both.
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,  # so that select() sees all unread data
            start_new_session=True,
            cwd=_ROOT,
            # The scripts import their neighbours, which the command `rollmill` forbids to its processes.
            env={name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"},
        )

    def answer(self, timeout_seconds: float) -> dict[str, Any]:
        """The next line of JSON on its standard output; others are passed over.

        Raises:
            AbsentError: It ended, or took too long.
        """
        output = self._process.stdout
        assert output is not None
        end = time.monotonic() + timeout_seconds
        while select.select([output], [], [], max(end - time.monotonic(), 0.0))[0]:
            line = output.readline()
            if not line:
                self._errors.seek(0)
                raise AbsentError(f"failed ({self._process.wait()}): {_last_lines(self._errors.read(), 3)}")
            with contextlib.suppress(json.JSONDecodeError):
                result = json.loads(line)
                if isinstance(result, dict):
                    return result
        raise AbsentError(f"did not answer within {timeout_seconds:.0f} s")

    def ask(self, timeout_seconds: float) -> dict[str, Any]:
        """Has it measure one round.

        Raises:
            AbsentError: It ended, or took too long.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # then answer() says why
            self._process.stdin.write(b"round\n")
        return self.answer(timeout_seconds)

    def close(self) -> None:
        """Let the process end, so that peers remove their semaphores from /dev/shm; otherwise kill it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # no more rounds
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.stdout.close()
        self._errors.close()
        self._process.wait()


@contextlib.contextmanager
def _processes() -> Iterator[Callable[[list[str]], _Process]]:
    """Starts processes, all of which are ended in the end."""
    with contextlib.ExitStack() as stack:

        def start(command: list[str]) -> _Process:
            process = _Process(command)
            stack.callback(process.close)
            return process

        yield start


def _command(peer: Peer, environments: Path, capacity: int, batch: int, seconds: float) -> list[str]:
    if peer.greatest_capacity is not None and capacity > peer.greatest_capacity:
        raise AbsentError(f"holds Python objects: not tried beyond {peer.greatest_capacity:,} transitions")
    install(peer, environments)
    command = [str(peer.python(environments)), str(_PEERS / peer.script), *peer.arguments]
    return [*command, "--capacity", str(capacity), "--batch", str(batch), "--seconds", str(seconds)]


def _attempt(results: dict[str, dict[str, Any]], name: str, action: Callable[[], dict[str, Any]]) -> None:
    """Adds what ``action`` returns to the peer's result, or makes the reason why it is absent its result."""
    if "absent" in results[name]:
        return
    try:
        results[name].update(action())
    except AbsentError as error:
        results[name] = {"absent": str(error)}
        print(f"{name}: {error}", file=sys.stderr, flush=True)


def measure(
    peers: Iterable[Peer],
    capacity: int,
    batch: int,
    rounds: int,
    *,
    seconds: float = 2.0,
    environments: Path = _ROOT,
) -> dict[str, dict[str, Any]]:
    """Fills all peers' buffers, then measures them in turn, ``rounds`` times.

    Args:
        peers: Whom to measure; each name once.
        capacity: Transitions that each buffer holds.
        batch: Transitions of a sample and of an update.
        rounds: How often all are measured.
        seconds: Length of each measurement, a fifth of which warms up.
        environments: Folder with their virtual environments.

    Returns:
        For each name ``{"sample_us": ..., "update_us": ..., "insert64_us": ..., "rounds": [...], "configuration": ...,
        "versions": {...}, "memory_mb": ..., ...}``, or ``{"absent": reason}``.
    """
    results: dict[str, dict[str, Any]] = {}
    answers: dict[str, list[dict[str, float]]] = {}
    running: dict[str, _Process] = {}
    with _processes() as start:
        for peer in peers:
            results[peer.name], answers[peer.name] = {}, []

            def fill(peer: Peer = peer) -> dict[str, Any]:
                command = _command(peer, environments, capacity, batch, seconds)
                running[peer.name] = start([*command, "--serve"])
                return running[peer.name].answer(_FILL_SECONDS)

            _attempt(results, peer.name, fill)
        for _ in range(rounds):
            for name, process in running.items():

                def ask(name: str = name, process: _Process = process) -> dict[str, Any]:
                    answers[name].append(process.ask(seconds + _OVERHEAD_SECONDS))
                    return {}

                _attempt(results, name, ask)
    for name, result in results.items():
        if "absent" not in result and answers[name]:
            result.update({f"{o}_us": median(a[f"{o}_us"] for a in answers[name]) for o in OPERATIONS})
            result["rounds"] = answers[name]
    return results


def verify(
    peers: Iterable[Peer], capacity: int, *, batch: int = 256, seconds: float = 20.0, environments: Path = _ROOT
) -> dict[str, dict[str, Any]]:
    """Checks the distribution, the weights and the data of each peer's samples; see ``replay_measure.py``.

    Args:
        peers: Whom to check.
        capacity: Transitions that each buffer holds.
        batch: Transitions of a sample.
        seconds: How long each one's batches are counted.
        environments: Folder with their virtual environments.

    Returns:
        For each name what was found, or ``{"absent": reason}``.
    """
    results: dict[str, dict[str, Any]] = {}
    with _processes() as start:
        for peer in peers:
            results[peer.name] = {}

            def check(peer: Peer = peer) -> dict[str, Any]:
                command = _command(peer, environments, capacity, batch, seconds)
                return start([*command, "--verify"]).answer(_FILL_SECONDS + seconds)

            _attempt(results, peer.name, check)
    return results


def table(results: dict[str, dict[str, Any]], capacity: int, batch: int) -> str:
    """What :func:`measure` found, in Markdown."""
    lines = [
        f"capacity {capacity:,}, batch {batch}, us a call",
        "",
        "| system | sample | update | insert 64 | memory, MB |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, result in results.items():
        if "absent" in result:
            lines.append(f"| {name} | absent: {result['absent']} | | | |")
            continue
        figures = " | ".join(f"{result[f'{operation}_us']:,.1f}" for operation in OPERATIONS)
        lines.append(f"| {name} | {figures} | {result['memory_mb']:,.0f} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capacities", type=int, nargs="+", default=(10_000, 100_000, 1_000_000))
    parser.add_argument("--batches", type=int, nargs="+", default=(256,))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each measurement (--verify: 20 and more)")
    parser.add_argument("--only", nargs="*", default=(), choices=[peer.name for peer in PEERS], help="these alone")
    parser.add_argument("--environments", type=Path, default=_ROOT, help="folder with the virtual environments")
    parser.add_argument("--verify", action="store_true", help="check the samples instead of taking the time")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each capacity and batch, no tables")
    given = parser.parse_args(arguments)
    # Its own exception, so that the peers are ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    peers = [peer for peer in PEERS if not given.only or peer.name in given.only]
    common = {"seconds": given.seconds, "environments": given.environments.resolve()}
    for capacity in given.capacities:
        for batch in given.batches:
            if given.verify:
                results = verify(peers, capacity, batch=batch, **common)
            else:
                results = measure(peers, capacity, batch, given.rounds, **common)
            if given.json or given.verify:
                print(json.dumps({"capacity": capacity, "batch": batch, "systems": results}), flush=True)
            else:
                print(table(results, capacity, batch) + "\n", flush=True)


if __name__ == "__main__":
    main()

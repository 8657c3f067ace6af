"""Rollmill beside its peers, interleaved: python benchmarks/peers.py --env atari --seconds 60 --rounds 3.

Each peer runs in an environment of its own (``.venv-peers-sf``: Sample Factory; ``.venv-peers``: Stable-Baselines3 and
the CleanRL-style loop on EnvPool; ``.venv-peers-frameworks``: TorchRL, RLlib, Tianshou and skrl;
``.venv-peers-multi-agent``: RLlib, TorchRL and Stable-Baselines3 on several agents), made by the first run, or in an
existing one (``--python``). One that does not install or fails is reported as absent, with the reason. All have the
same game, network, batch, epochs and cores, and none a GPU; they run one after another, round after round, so that a
slow minute of the machine hits all of them; medians over the rounds are compared.

Before that, each peer's workers, environments and threads are searched (``--search-seconds``, 0 leaves it out): every
candidate is measured twice, in turn, and the fastest is the peer's configuration for the comparison.

``connect-four`` (self-play) and ``simple-spread`` (three agents that cooperate) have one policy for all agents; steps
are the turns of all agents that were learned from. Connect four is also measured with Rollmill's other environment of
the same game, EnvPool's in C++ (``rollmill-envpool``), which the peers do not have.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent
_PEERS = _ROOT / "benchmarks" / "peers"
_REPLAY = ("--regime", "replay", "--replay.min-size", "1000", "--off-policy.random-steps", "1000")
_LEARNERS = ("--learner.num-learners", "2")
_THREE_LEARNERS = ("--learner.num-learners", "3")
_SEPARATE_64 = ("--model.encoder", "mlp", "--model.mlp-sizes", "64,64", "--model.shared", "false")
# Both players are the current network, as the peers have it.
_SELF_PLAY = (*_SEPARATE_64, "--population.past", "0", "--population.snapshots", "0")
_PRESETS = {
    "atari": ("atari/breakout",),
    "cartpole": ("gym/CartPole-v1",),
    # Sample Factory's scenario has pictures alone.
    "vizdoom": ("vizdoom/defend_the_center", "--env.vizdoom.measurements", "false"),
    "battle": ("vizdoom/battle",),
    # Both players are the current network, on the map of the paper, which Sample Factory's package has.
    "duel": ("vizdoom/duel", "--population.past", "0", "--population.snapshots", "0"),
    # Learning and acting by the network from soon after the start, as the peers' scripts have it.
    "pong-dqn": (
        *("atari/pong", "--regime", "replay", "--off-policy.algorithm", "dqn", "--replay.min-size", "1000"),
        *("--off-policy.epsilon-start", "0.01", "--off-policy.epsilon-end", "0.01", "--off-policy.double", "false"),
        *("--replay.update-interval", "4", "--replay.n-step", "1", *_LEARNERS),
    ),
    "cartpole-dqn": (
        *("gym/CartPole-v1", "--regime", "replay", "--off-policy.algorithm", "dqn"),
        *("--off-policy.epsilon-start", "0.04", "--off-policy.epsilon-end", "0.04"),
        *("--learner.batch-size", "64", "--replay.n-step", "1"),
    ),
    # More learners than two cores, as each waits for the server an eighth of its time; at the same update ratio: each
    # gradient is an SGD step.
    "halfcheetah-sac": ("mujoco/HalfCheetah-v5", *_REPLAY, "--off-policy.algorithm", "sac", *_THREE_LEARNERS),
    "halfcheetah-td3": (
        *("mujoco/HalfCheetah-v5", *_REPLAY, "--off-policy.algorithm", "td3", *_THREE_LEARNERS),
        *("--learner.batch-size", "256"),
    ),
    # The peers have the batch, minibatches and epochs of this preset.
    "connect-four": ("pettingzoo/classic/connect_four_v3", *_SELF_PLAY),
    # A batch that both three agents and powers of two divide; epochs as in cartpole.
    "simple-spread": (
        *("mpe/simple_spread_v3", *_SEPARATE_64, "--learner.entropy-coef", "0.01"),
        *("--learner.batch-size", "3072", "--learner.minibatches", "8", "--learner.epochs", "4"),
    ),
}
# The game in C++ costs little: a forward pass for few rows would take most of the time.
_OTHER_PRESETS = {
    "connect-four": {"rollmill-envpool": ("envpool/ConnectFour-v1", *_SELF_PLAY, "--num-envs", "512")},
}
_ROLLMILL = [sys.executable, "-m", "rollmill"]
# The peers' scripts do all on the CPU.
_ON_THE_CPU = ("--learner.device", "cpu", "--inference.device", "cpu")
_CANDIDATES_CORES = 2
_SHARED_MEMORY = Path("/dev/shm")
_ENGINE_QUEUES = "ViZDoom*"
_OVERHEAD_SECONDS = 600  # starting, warming up, Rollmill's measurements besides the training, ending


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A system to compare with.

    Attributes:
        name: For the table.
        script: In ``benchmarks/peers``.
        environment: Folder of its virtual environment.
        requirements: What is installed there.
        imports: What must import for it to be there.
        envs: What it is compared on.
        candidates: For each of these, arguments that are searched for the fastest; the first were it on two cores.
        interpreter: Of an existing environment to use instead.
    """

    name: str
    script: str
    environment: str
    requirements: str
    imports: str
    envs: tuple[str, ...]
    candidates: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    interpreter: Path | None = None

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.interpreter or _ROOT / self.environment / "bin" / "python"


def _sample_factory(*sizes: tuple[int, int]) -> tuple[tuple[str, ...], ...]:
    return tuple((f"--num_workers={workers}", f"--num_envs_per_worker={envs}") for workers, envs in sizes)


def _stable_baselines(*sizes: tuple[int, str, int]) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (f"--num-envs={envs}", f"--vec-env={vec_env}", f"--threads={threads}") for envs, vec_env, threads in sizes
    )


def _pairs(first: str, *sizes: tuple[int, int]) -> tuple[tuple[str, ...], ...]:
    return tuple((f"--{first}={count}", f"--num-envs={envs}") for count, envs in sizes)


def _vectors(*sizes: tuple[int, str, int]) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (f"--num-envs={envs}", f"--vector={vector}", f"--threads={threads}") for envs, vector, threads in sizes
    )


def _processes(first: str, *sizes: tuple[int, int, str, int]) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (f"--{first}={count}", *_vectors((envs, vector, threads))[0]) for count, envs, vector, threads in sizes
    )


_THREADS = (("--threads=2",), ("--threads=1",))
_MULTI_AGENT = ("connect-four", "simple-spread")

PEERS = (
    Peer(
        name="sample-factory",
        script="sample_factory_appo.py",
        environment=".venv-peers-sf",
        requirements="requirements-sample-factory.txt",
        imports="sample_factory, sf_examples.atari.atari_utils, ale_py, vizdoom",
        envs=("atari", "cartpole", "vizdoom", "battle", "duel"),
        candidates={
            "battle": _sample_factory((2, 32), (2, 16), (4, 16)),
            "duel": _sample_factory((2, 8), (2, 4), (4, 4), (4, 2)),
            "atari": _sample_factory((2, 32), (2, 16), (2, 8), (4, 16), (1, 32)),
            "vizdoom": _sample_factory((2, 32), (2, 16), (4, 16), (2, 8)),
            "cartpole": _sample_factory((2, 64), (2, 16), (1, 32), (4, 16)),
        },
    ),
    Peer(
        name="stable-baselines3",
        script="stable_baselines3_ppo.py",
        environment=".venv-peers",
        requirements="requirements.txt",
        imports="stable_baselines3, ale_py, cv2",
        envs=("atari", "cartpole"),
        candidates={
            "atari": _stable_baselines((16, "subproc", 2), (8, "subproc", 2), (8, "dummy", 2), (32, "dummy", 2)),
            "cartpole": _stable_baselines((64, "dummy", 1), (32, "dummy", 1), (8, "dummy", 1), (32, "dummy", 2)),
        },
    ),
    Peer(
        name="cleanrl-envpool",
        script="cleanrl_envpool_ppo.py",
        environment=".venv-peers",
        requirements="requirements.txt",
        imports="envpool, torch",
        envs=("atari",),
        candidates={
            "atari": tuple(
                (f"--num-envs={envs}", f"--threads={threads}", f"--env-threads={env_threads}")
                for envs, threads, env_threads in ((128, 2, 2), (64, 2, 2), (64, 1, 2), (32, 2, 2))
            )
        },
    ),
    Peer(
        name="torchrl",
        script="torchrl_ppo.py",
        environment=".venv-peers-frameworks",
        requirements="requirements-frameworks.txt",
        imports="torchrl.collectors, ale_py.vector_env, cv2",
        envs=("atari", "cartpole"),
        candidates={
            "atari": _processes(
                "processes", (2, 32, "ale", 1), (1, 64, "ale", 1), (1, 128, "ale", 1), (1, 64, "ale", 2)
            ),
            "cartpole": _processes(
                "processes", (1, 64, "sync", 1), (1, 128, "sync", 1), (2, 64, "sync", 1), (0, 64, "sync", 1)
            ),
        },
    ),
    Peer(
        name="rllib",
        script="rllib_ppo.py",
        environment=".venv-peers-frameworks",
        requirements="requirements-frameworks.txt",
        imports="ray.rllib, ale_py.vector_env, cv2",
        envs=("atari", "cartpole"),
        candidates={
            "atari": _processes(
                "num-env-runners", (2, 32, "ale", 2), (1, 64, "ale", 2), (2, 32, "ale", 1), (2, 16, "sync", 1)
            ),
            "cartpole": _processes(
                "num-env-runners", (2, 16, "sync", 1), (2, 32, "sync", 1), (1, 64, "sync", 1), (0, 64, "sync", 1)
            ),
        },
    ),
    Peer(
        name="tianshou",
        script="tianshou_ppo.py",
        environment=".venv-peers-frameworks",
        requirements="requirements-frameworks.txt",
        imports="tianshou.algorithm, tianshou.data, ale_py, cv2, envpool",
        envs=("atari", "cartpole"),
        candidates={
            "atari": _vectors((64, "envpool", 2), (64, "envpool", 1), (16, "shmem", 1), (8, "shmem", 2)),
            "cartpole": _vectors((128, "dummy", 1), (64, "dummy", 1), (32, "dummy", 1), (16, "shmem", 1)),
        },
    ),
    Peer(
        name="skrl",
        script="skrl_ppo.py",
        environment=".venv-peers-frameworks",
        requirements="requirements-frameworks.txt",
        imports="skrl.agents.torch.ppo, ale_py.vector_env, cv2",
        envs=("atari", "cartpole"),
        candidates={
            "atari": _vectors((128, "ale", 2), (64, "ale", 2), (64, "ale", 1), (8, "async", 1)),
            "cartpole": _vectors((128, "sync", 1), (64, "sync", 1), (32, "sync", 1), (16, "async", 1)),
        },
    ),
    Peer(
        name="stable-baselines3-off-policy",
        script="stable_baselines3_off_policy.py",
        environment=".venv-peers",
        requirements="requirements.txt",
        imports="stable_baselines3, ale_py, cv2, mujoco",
        envs=("pong-dqn", "cartpole-dqn", "halfcheetah-sac", "halfcheetah-td3"),
        candidates=dict.fromkeys(("pong-dqn", "cartpole-dqn", "halfcheetah-sac", "halfcheetah-td3"), _THREADS),
    ),
    Peer(
        name="cleanrl-dqn",
        script="cleanrl_dqn.py",
        environment=".venv-peers",
        requirements="requirements.txt",
        imports="torch, ale_py",
        envs=("pong-dqn",),
        candidates={"pong-dqn": _THREADS},
    ),
    Peer(
        name="cleanrl-continuous",
        script="cleanrl_continuous.py",
        environment=".venv-peers",
        requirements="requirements.txt",
        imports="torch, mujoco",
        envs=("halfcheetah-sac", "halfcheetah-td3"),
        candidates=dict.fromkeys(("halfcheetah-sac", "halfcheetah-td3"), _THREADS),
    ),
    Peer(
        name="rllib-multi-agent",
        script="multi_agent_rllib.py",
        environment=".venv-peers-multi-agent",
        requirements="requirements-multi-agent.txt",
        imports="ray.rllib, pettingzoo.classic.connect_four_v3, mpe2",
        candidates=dict.fromkeys(_MULTI_AGENT, _pairs("num-env-runners", (2, 16), (2, 64), (1, 32), (0, 32))),
        envs=_MULTI_AGENT,
    ),
    Peer(
        name="torchrl-multi-agent",
        script="multi_agent_torchrl.py",
        environment=".venv-peers-multi-agent",
        requirements="requirements-multi-agent.txt",
        imports="torchrl.collectors, pettingzoo.classic.connect_four_v3, mpe2",
        candidates=dict.fromkeys(_MULTI_AGENT, _pairs("processes", (2, 16), (2, 4), (0, 16))),
        envs=_MULTI_AGENT,
    ),
    Peer(
        name="stable-baselines3-multi-agent",
        script="multi_agent_sb3.py",
        environment=".venv-peers-multi-agent",
        requirements="requirements-multi-agent.txt",
        imports="stable_baselines3, sb3_contrib, supersuit, pettingzoo.classic.connect_four_v3, mpe2",
        candidates={
            "connect-four": _pairs("processes", (0, 32), (0, 128), (1, 8)),
            "simple-spread": _pairs("processes", (0, 32), (0, 128), (2, 32), (2, 128)),
        },
        envs=_MULTI_AGENT,
    ),
)

# Not one of those: compared by what it learns, in out_of_the_box.py.
STABLE_BASELINES3_DEFAULTS = Peer(
    name="stable-baselines3-defaults",
    script="stable_baselines3_defaults.py",
    environment=".venv-peers",
    requirements="requirements.txt",
    imports="stable_baselines3, ale_py, cv2, mujoco, imageio, packaging, Box2D, minigrid, vizdoom",
    envs=(),
)


class AbsentError(Exception):
    """A peer cannot be measured; says why."""


def install(peer: Peer) -> None:
    """Makes the peer's virtual environment, unless it is there and whole.

    Raises:
        AbsentError: It does not install, or does not import.
    """
    check = [str(peer.python), "-c", f"import {peer.imports}"]
    if peer.python.exists() and subprocess.run(check, capture_output=True).returncode == 0:
        return
    if peer.interpreter is not None:
        raise AbsentError(f"{peer.interpreter} does not import {peer.imports}")
    print(f"installing {peer.name} into {peer.environment}", file=sys.stderr, flush=True)
    venv.create(_ROOT / peer.environment, with_pip=True)
    pip = [str(peer.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in ([*pip, "-r", str(_PEERS / peer.requirements)], check):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise AbsentError("does not install: " + _last_lines(done.stderr, 3))


def _last_lines(text: str, count: int) -> str:
    return " | ".join(line.strip() for line in text.strip().splitlines()[-count:])


def run(command: list[str], timeout_seconds: float) -> dict[str, Any]:
    """Runs a command to its end and reads the last line of its standard output as JSON.

    Raises:
        AbsentError: It failed, took too long, or did not end with JSON; the processes that it started are ended then.
    """
    engines_before = set(_SHARED_MEMORY.glob(_ENGINE_QUEUES))
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=_ROOT
    )
    try:
        output, errors = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired as error:
        raise AbsentError(f"did not end within {timeout_seconds:.0f} s") from error
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what a failed or interrupted peer left behind
        process.communicate()
        for queue in set(_SHARED_MEMORY.glob(_ENGINE_QUEUES)) - engines_before:
            queue.unlink(missing_ok=True)  # VizDoom's engines leave theirs when they are killed
    lines = output.strip().splitlines()
    if process.returncode:
        raise AbsentError(f"failed ({process.returncode}): {_last_lines(output + errors, 5)}")
    try:
        result: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, json.JSONDecodeError) as error:
        raise AbsentError(f"did not end with JSON: {_last_lines(output + errors, 2)}") from error
    return result


def search(peer: Peer, env: str, seconds: float) -> tuple[str, ...]:
    """The fastest of a peer's candidates by their better of two measurements; those that fail are passed over."""
    candidates = peer.candidates.get(env, ())
    if len(candidates) < 2 or seconds <= 0:
        return candidates[0] if candidates else ()
    best: dict[tuple[str, ...], float] = {}
    for _ in range(2):
        for candidate in candidates:
            command = [*_command(peer, env, seconds), *candidate]
            try:
                rate = run(command, seconds + _OVERHEAD_SECONDS)["steps_per_second"]
            except AbsentError as error:
                print(f"search  {peer.name} {' '.join(candidate)}: {error}", file=sys.stderr, flush=True)
                continue
            print(f"search  {peer.name} {' '.join(candidate)}: {rate:,.0f} steps/s", file=sys.stderr, flush=True)
            best[candidate] = max(rate, best.get(candidate, 0.0))
    if not best:
        raise AbsentError("none of its configurations runs; the reasons are above")
    return max(best, key=best.__getitem__)


def _command(peer: Peer, env: str, seconds: float) -> list[str]:
    return [str(peer.python), str(_PEERS / peer.script), "--env", env, "--seconds", str(seconds)]


def measure(
    env: str,
    seconds: float,
    rounds: int,
    only: tuple[str, ...],
    search_seconds: float = 0.0,
    python: Path | None = None,
) -> dict[str, Any]:
    """Measures Rollmill and the peers in turn, ``rounds`` times, each for ``seconds``.

    Args:
        env: Which comparison.
        seconds: Length of each measurement.
        rounds: How often all are measured.
        only: Names of the peers; all if empty.
        search_seconds: Length of each measurement of the search for a peer's best configuration; 0 takes the first.
        python: The interpreter that runs all peers, instead of environments of their own.

    Returns:
        ``systems``: name -> medians, all values, configuration and Rollmill's speed over the peer's; ``absent``:
        name -> reason.
    """
    absent: dict[str, str] = {}
    cores = len(os.sched_getaffinity(0))
    if cores != _CANDIDATES_CORES:
        print(_two_cores_only(cores), file=sys.stderr, flush=True)
    own = {"rollmill": _PRESETS[env], **_OTHER_PRESETS.get(env, {})}
    commands = {
        name: [*_ROLLMILL, "bench", "train", *preset, *_ON_THE_CPU, "--seconds", str(seconds), "--json"]
        for name, preset in own.items()
    }
    for peer in (replace(peer, interpreter=python) for peer in PEERS):
        if env in peer.envs and (not only or peer.name in only):
            try:
                install(peer)
                commands[peer.name] = [*_command(peer, env, seconds), *search(peer, env, search_seconds)]
            except AbsentError as error:
                absent[peer.name] = str(error)
    if env == "duel" and "sample-factory" in commands:
        commands["rollmill"] += ["--env.vizdoom.wad", str(_duel_map(Path(commands["sample-factory"][0])))]
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for turn in range(rounds):
        for name, command in commands.items():
            if name in absent:
                continue
            try:
                results[name].append(run(command, seconds + _OVERHEAD_SECONDS))
            except AbsentError as error:
                absent[name] = str(error)
                continue
            fps = results[name][-1]["frames_per_second"]
            print(f"round {turn + 1}/{rounds}  {name:20}{fps:12,.0f} frames/s", file=sys.stderr, flush=True)
    for name in own:  # `rollmill bench` does not report it
        for result in results[name]:
            result["versions"] = {package: version(package) for package in ("rollmill", "torch")}
    systems = {name: _summary(runs) for name, runs in results.items() if runs and name not in absent}
    for name in own.keys() & systems.keys():
        ours = systems[name]["steps_per_second"]
        for summary in systems.values():
            summary[f"{name.replace('-', '_')}_over_this"] = ours / summary["steps_per_second"]
    return {
        "env": env,
        "seconds": seconds,
        "rounds": rounds,
        "cores": cores,
        "machine": _processor(),
        "systems": systems,
        "commands": {name: command[1:] for name, command in commands.items()},
        "absent": absent,
    }


def _two_cores_only(cores: int) -> str:
    return (
        f"The peers' candidates are sizes for {_CANDIDATES_CORES} cores. Rollmill uses the {cores} cores of this "
        "machine, so the ratios say little."
    )


def _duel_map(python: Path) -> Path:
    """The paper's map, in Sample Factory's package."""
    where = "lib/python*/site-packages/sf_examples/vizdoom/doom/scenarios/ssl2.wad"
    (found,) = python.parents[1].glob(where)
    return found


def _summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "steps_per_second": median(r["steps_per_second"] for r in runs),
        "frames_per_second": median(r["frames_per_second"] for r in runs),
        "all_frames_per_second": [r["frames_per_second"] for r in runs],
        "versions": runs[-1].get("versions", {}),
        "last": runs[-1],
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def table(result: dict[str, Any]) -> str:
    """A table in Markdown."""
    others = tuple(_OTHER_PRESETS.get(result["env"], {}))
    lines = [
        f"{result['env']}, {result['cores']} cores of {result['machine']}, "
        f"median of {result['rounds']} rounds of {result['seconds']:.0f} s",
        "",
        "| system | version | frames/s | steps/s | Rollmill is faster by | "
        + "".join(f"{name} by | " for name in others)
        + "precision |",
        "|---|---|---:|---:|---:|" + "---:|" * len(others) + "---|",
    ]
    for name, summary in result["systems"].items():
        ratios = [summary.get(f"{own.replace('-', '_')}_over_this") for own in ("rollmill", *others)]
        ratio = " | ".join("-" if found is None else f"{found:.2f}x" for found in ratios)
        precision = summary["last"].get("precision", summary["last"].get("fast_path", ""))
        # The first package is the system, the others are what it runs on.
        own_version = " ".join(next(iter(summary["versions"].items()), ()))
        lines.append(
            f"| {name} | {own_version} | {summary['frames_per_second']:,.0f} | {summary['steps_per_second']:,.0f} "
            f"| {ratio} | {precision} |"
        )
    lines += [f"| {name} | | absent: {reason} | | | |{' |' * len(others)}" for name, reason in result["absent"].items()]
    if result["cores"] != _CANDIDATES_CORES:
        lines += ["", _two_cores_only(result["cores"])]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=tuple(_PRESETS), default="atari")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=(), choices=[p.name for p in PEERS], help="these peers only")
    parser.add_argument(
        "--search-seconds",
        type=float,
        default=10.0,
        help="for each candidate; 0 takes the first, which were the fastest on two cores",
    )
    parser.add_argument("--python", type=Path, help="interpreter of an existing environment for all peers")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON instead of a table")
    arguments = parser.parse_args()
    # Its own exception, so that a peer in the middle of its measurement is ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    result = measure(
        arguments.env,
        arguments.seconds,
        arguments.rounds,
        tuple(arguments.only),
        arguments.search_seconds,
        None if arguments.python is None else arguments.python.absolute(),
    )
    print(json.dumps(result) if arguments.json else table(result))
    if "rollmill" in result["absent"]:
        sys.exit(1)


if __name__ == "__main__":
    main()

"""Times of the network alone, measured in a separate process.

How a forward pass's time depends on the size of the batch, and how much faster more threads, or more learners, learn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rollmill.models.device import resolve_device, take_threads
from rollmill.regimes.ending import exited_early
from rollmill.regimes.setup import Probed
from rollmill.regimes.user_code import UserCode
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.runtime.child import ChildContext
from rollmill.runtime.events import Exited, Failed, Message
from rollmill.runtime.supervisor import Supervisor
from rollmill.settings.config import Config
from rollmill.storage import weights
from rollmill.tuning.curves import Curve

if TYPE_CHECKING:
    import torch

    from rollmill.algorithms.base import OffPolicyAlgorithm
    from rollmill.learning.sharing import SharedSizes
    from rollmill.learning.update import Update

_BATCHES = (1, 4, 16, 64)
_SECONDS_EACH = 0.15
_MINIBATCH = 256


class NetworkTimes(NamedTuple):
    """How a network's time depends on what it is given; ratios, where runs say the rest.

    Attributes:
        fixed_s: Of a forward pass, whatever its size.
        row_s: Of a forward pass, for each row.
        threads: Threads of an SGD step -> times as fast.
        learners: Numbers of learners, with the most of these threads each, that there may be; ascending from 1.
        server_share: What a parameter server does for each gradient, over a whole SGD step; 0 with one learner.
        sgd_step_s: Of an SGD step by one thread; 0 where an accelerator makes it.
    """

    fixed_s: float
    row_s: float
    threads: Curve
    learners: tuple[int, ...] = (1,)
    server_share: float = 0.0
    sgd_step_s: float = 0.0

    def speedup(self, server_share: float | None = None) -> Curve:
        """Cores of the learner -> times as fast.

        Args:
            server_share: Instead of what was timed alone.
        """
        share = self.server_share if server_share is None else server_share
        own, gain = self.threads.cores[-1], self.threads.rates[-1]
        gains = dict(zip(self.threads.cores, self.threads.rates, strict=True))
        return _rising(gains | {own * n: gain * gain_of_learners(n, share) for n in self.learners})


def network_times(
    supervisor: Supervisor, config: Config, probed: Probed, threads: Sequence[int], learners: Sequence[int] = (1,)
) -> NetworkTimes:
    """Times the network in a process of its own.

    Args:
        supervisor: Starts it.
        config: Resolved.
        probed: What the environment and the network are.
        threads: Numbers of threads to try for learning, ascending, beginning with 1.
        learners: Numbers of learners with the most threads each, likewise; what they gain is reckoned.

    Raises:
        ProcessFailed: It failed.
    """
    supervisor.start(
        "network", _time_network, config, UserCode.of_this_process(config), probed, tuple(threads), tuple(learners)
    )
    while True:
        for event in supervisor.poll(0.1):
            if isinstance(event, Message) and isinstance(event.content, NetworkTimes):
                return event.content
            if isinstance(event, Failed | Exited):
                raise (event if isinstance(event, Failed) else exited_early(event)).error()


def _time_network(
    context: ChildContext,
    config: Config,
    user_code: UserCode,
    probed: Probed,
    threads: tuple[int, ...],
    learners: tuple[int, ...],
) -> None:
    """Child: sends :class:`NetworkTimes`."""
    user_code.install()
    import torch

    take_threads(config.inference.threads)
    forward = _forward(config, probed, resolve_device(config.inference.device))
    with torch.inference_mode():
        times = [_seconds(partial(forward, rows)) for rows in _BATCHES]
    row, fixed = np.polyfit(_BATCHES, times, 1, w=1 / np.array(times))
    fixed, row = max(0.05 * times[0], float(fixed)), max(1e-9, float(row))
    if resolve_device(config.compute.device).type != "cpu":
        context.send(NetworkTimes(fixed, row, Curve((1.0,), (1.0,))))
        return
    step, serve = _sgd_step(config, probed)
    seconds: dict[float, float] = {}
    for count in threads:
        torch.set_num_threads(count)
        seconds[count] = _seconds(step)
    gains = _rising({count: seconds[1] / each for count, each in seconds.items()})
    share = _seconds(serve) / seconds[threads[-1]] if learners[-1] > 1 else 0.0
    context.send(NetworkTimes(fixed, row, gains, learners, share, seconds[1]))


def _rising(gains: Mapping[float, float]) -> Curve:
    """Make times non-increasing in the number of cores, because additional cores can be left idle."""
    cores = sorted(gains)
    return Curve(tuple(map(float, cores)), tuple(np.maximum.accumulate([gains[x] for x in cores]).tolist()))


def gain_of_learners(learners: int, server_share: float) -> float:
    """How many times as fast several learners are as one.

    Each computes its gradient and waits for the parameter server to apply it; the server applies one after the other.

    Args:
        learners: How many.
        server_share: Time to apply a gradient over that of a whole SGD step.
    """
    return 1.0 if learners == 1 else learners / max(1 + server_share, learners * server_share)


def by_amdahl(speedup: Curve, cores: Sequence[int]) -> Curve:
    """A learner's speedup by threads, with Amdahl's law behind the last number that was timed.

    Its parallel share is what that number says; of a single thread nothing is known, so more gain nothing.

    Args:
        speedup: As timed.
        cores: Numbers to know it for.
    """
    timed, gain = speedup.cores[-1], speedup.rates[-1]
    if timed == 1:
        return speedup
    parallel = min(1.0, (1 - 1 / gain) / (1 - 1 / timed))
    more = [float(x) for x in sorted(cores) if x > timed]
    rates = [1 / (1 - parallel + parallel / x) for x in more]
    return Curve((*speedup.cores, *more), (*speedup.rates, *np.maximum(gain, rates).tolist()))


def _seconds(call: Callable[[], object]) -> float:
    """Of one call: the median over a moment."""
    call()
    call()
    times: list[float] = []
    end = time.perf_counter() + _SECONDS_EACH
    while time.perf_counter() < end or len(times) < 3:
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return float(np.median(times))


def _forward(config: Config, probed: Probed, device: torch.device) -> Callable[[int], torch.Tensor]:
    """A forward pass of so many rows, as a policy worker makes it; that of an on-policy network has gradients."""
    import torch

    from rollmill.algorithms.base import Explore
    from rollmill.learning.blank_batches import blank_observation
    from rollmill.models.precision import settled_precision
    from rollmill.regimes.torch_side import make_off_policy, make_on_policy

    spec = probed.spec
    bf16 = settled_precision(device, has_images=spec.has_images) == "bf16"
    observations = {rows: blank_observation(spec, rows, device) for rows in (*_BATCHES, _minibatch(config))}

    def finish(*results: torch.Tensor) -> torch.Tensor:
        total = torch.stack([result.float().sum() for result in results]).sum()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return total

    if not config.in_replay:
        model = make_on_policy(config, spec).acting.to(device)

        def forward(rows: int) -> torch.Tensor:
            state = torch.zeros(rows, model.state_size, device=device) if model.state_size else None
            reset = torch.zeros(rows, dtype=torch.bool, device=device)
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                output = model(observations[rows], state, reset)
            return finish(output.params, output.value)

        return forward
    algorithm = make_off_policy(config, spec).to(device)
    generator = torch.Generator(device).manual_seed(0)

    def act(rows: int) -> torch.Tensor:
        mask = None
        if spec.has_action_mask:
            mask = torch.ones((rows, spec.action.mask_size), dtype=torch.bool, device=device)
        reset = torch.zeros(rows, dtype=torch.bool, device=device)
        explore = Explore(10**9, 10**9, torch.arange(rows, device=device), rows, reset, generator)
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            if algorithm.state_size:
                state = torch.zeros(rows, algorithm.state_size, device=device)
                action, _ = algorithm.act_with_state(observations[rows], state, reset, mask, explore)
            else:
                action = algorithm.act(observations[rows], mask, explore)
        return finish(*(part for part in action if part is not None))

    return act


def _sgd_step(config: Config, probed: Probed) -> tuple[Callable[[], object], Callable[[], object]]:
    """What a learner does over and over, on the CPU, or what takes it longest; and a parameter server's part of it."""
    import torch

    from rollmill.learning.blank_batches import blank_batch
    from rollmill.learning.off_policy_measure import choose_replay_path
    from rollmill.learning.update import Update
    from rollmill.regimes.torch_side import make_off_policy

    spec, device = probed.spec, torch.device("cpu")
    if not config.in_replay:
        forward, rows = _forward(config, probed, device), _minibatch(config)
        return (lambda: forward(rows).backward()), lambda: None  # type: ignore[no-untyped-call]  # torch leaves it so
    algorithm = make_off_policy(config, spec)
    generator = torch.Generator(device).manual_seed(0)
    # Only ratios count, so no memory format is looked for.
    settings = replace(config.compute, channels_last=config.compute.channels_last is not False)
    path = choose_replay_path(algorithm, spec, settings, config.replay)
    update = Update(algorithm, config.optimiser, path, generator=generator)
    batch = blank_batch(spec, config.replay, _minibatch(config), algorithm.state_size, device)
    step = partial(update.step, [batch])
    return step, (lambda: None) if probed.shared is None else _serving(update, algorithm, probed.shared)


def _serving(update: Update, algorithm: OffPolicyAlgorithm, sizes: SharedSizes) -> Callable[[], object]:
    """What a parameter server does with a gradient: it takes the step and publishes the networks."""
    from rollmill.learning.sharing import NetworkRing

    layout = ArenaLayout()
    for ring, nbytes in sizes.rings.items():
        weights.add_to_layout(layout, nbytes=nbytes, ring=ring)
    arena = Arena.create(layout)
    for ring in sizes.rings:
        weights.WeightStore(arena, ring=ring, create=True)
    networks = NetworkRing(arena, algorithm)

    def serve() -> None:
        update.apply(update.due(update.sgd_steps + 1), {})
        networks.publish(update.sgd_steps, targets=update.sgd_steps % algorithm.target_update_every == 0)

    return serve


def _minibatch(config: Config) -> int:
    return min(_MINIBATCH, config.minibatch_size)

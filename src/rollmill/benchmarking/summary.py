"""Results of benchmarks as text: a sentence for each fact, and on request every value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NAMES = {"rollmill": "Rollmill's", "multiprocessing": "multiprocessing's", "faster_fifo": "faster-fifo's"}


def summary(what: str, result: Mapping[str, Any]) -> str:
    """One sentence for each fact, each on a line.

    Args:
        what: "sim", "sampler", "train", "population", "ring" or "replay".
        result: What that benchmark's ``run`` returned.
    """
    sentences = {
        "sim": _sim,
        "sampler": _sampler,
        "train": _train,
        "population": _population,
        "ring": _ring,
        "replay": _replay,
    }
    return "\n".join(sentences[what](result))


def details(result: Mapping[str, object], indent: str = "") -> str:
    """Every value under its name, nested as the result is."""
    lines: list[str] = []
    for name, value in result.items():
        label = f"{indent}{name.replace('_', ' ')}"
        if isinstance(value, Mapping):
            lines += [f"{label}:", details(value, indent + "  ")]
        elif isinstance(value, float):
            lines.append(f"{label:<44}{value:,.0f}" if abs(value) >= 1000 else f"{label:<44}{value:.4g}")
        else:
            lines.append(f"{label:<44}{value}")
    return "\n".join(lines)


def _population(result: Mapping[str, Any]) -> list[str]:
    return [
        *(
            f"{count} {'policy' if count == '1' else 'policies'} on {result['num_envs']} environments of "
            f"{result['preset']}: {speed:,.0f} agent steps/s, {result['memory_mib'][count]:,} MiB in "
            f"{result['processes'][count]} processes."
            for count, speed in result["policies"].items()
        ),
        f"Twelve policies cost {result['loss_12']:.1%} of the speed of one.",
    ]


def _sim(result: Mapping[str, Any]) -> list[str]:
    return [
        f"The environments of {result['preset']} alone make {result['pure_simulation_steps_per_second']:,.0f} agent "
        f"steps/s: {result['num_envs']} of them in {result['processes']} processes, with random actions."
    ]


def _sampler(result: Mapping[str, Any]) -> list[str]:
    alone, sampled = result["pure_simulation_steps_per_second"], result["sampler_steps_per_second"]
    share = result["share_of_pure_simulation"]
    sentences = [
        f"Rollmill samples {result['preset']} at {sampled:,.0f} agent steps/s, with random actions and no learning.",
        f"The environments alone make {alone:,.0f}.",
    ]
    if share < 1:
        return [*sentences, f"Handing the data on costs {1 - share:.1%} of that."]
    return [*sentences, "Handing the data on costs nothing that could be measured."]


def _train(result: Mapping[str, Any]) -> list[str]:
    steps, frames = result["steps_per_second"], result["frames_per_second"]
    also = f" ({frames:,.0f} frames/s)" if round(frames) != round(steps) else ""
    sentences = [f"Training {result['preset']} makes {steps:,.0f} agent steps/s{also}."]
    if "sgd_steps_per_second" in result:
        sentences.append(
            f"{result['algorithm'].upper()} takes {result['sgd_steps_per_second']:,.0f} SGD steps/s, one for every "
            f"{result['update_interval']:g} agent steps, with batches of {result['batch_size']}."
        )
    if "pure_simulation_steps_per_second" in result:
        sentences.append(
            f"The environments alone would make {result['pure_simulation_steps_per_second']:,.0f}: training reaches "
            f"{result['share_of_pure_simulation']:.0%} of that, because it also needs the cores for the network."
        )
    if "policy_lag_mean" in result:
        sentences.append(
            f"The policy that collected a sample is {result['policy_lag_mean']:.1f} {result['policy_lag_unit']} old on "
            f"average when the sample is learned from, and {result['policy_lag_max']:.0f} at most."
        )
    ledger = str(result["ledger"]).splitlines()
    return sentences + [line for line in ledger if line.startswith("Bottleneck:")]


def _ring(result: Mapping[str, Any]) -> list[str]:
    sentences = []
    for count, rates in result["producers"].items():
        others = ", ".join(f"{_NAMES[name]} {rate:,.0f}" for name, rate in rates.items() if name != "rollmill")
        who = "1 process sends" if count == "1" else f"{count} processes send"
        sentences.append(f"Where {who}, Rollmill's queue passes {rates['rollmill']:,.0f} messages/s, {others}.")
    return sentences


def _replay(result: Mapping[str, Any]) -> list[str]:
    sentences = [
        f"A prioritised replay takes {result['sample_us']:,.0f} us to sample a batch, {result['update_us']:,.0f} us to "
        f"update its priorities and {result['insert64_us']:,.0f} us to insert 64 transitions."
    ]
    times = {
        name: sum(found[f"{operation}_us"] for operation in ("sample", "update", "insert64"))
        for name, found in result["peers"].items()
        if "absent" not in found
    }
    if times and result["ratio_to_best_peer"] is not None:
        best = min(times, key=lambda name: times[name])
        sentences.append(f"The fastest other library, {best}, takes {result['ratio_to_best_peer']:.1f} times as long.")
    if missing := [name for name, found in result["peers"].items() if "absent" in found and name != "all"]:
        sentences.append(f"Not installed here, and so not measured: {', '.join(missing)} (--install-peers).")
    elif not times:
        sentences.append("Other libraries are measured from a checkout only.")
    if growth := result["growth"].get("sample"):
        sizes = [int(size) for size, found in result["capacity"].items() if "absent" not in found]
        sentences.append(
            f"Sampling from {max(sizes):,} transitions takes {growth:.1f} times as long as from {min(sizes):,}."
        )
    return sentences

"""What benchmarks say to people."""

from __future__ import annotations

from typing import Any

from rollmill.benchmarking.summary import summary

TRAIN: dict[str, Any] = {
    "preset": "atari/pong",
    "seconds": 30.0,
    "frames_per_second": 4800.0,
    "steps_per_second": 1200.0,
    "pure_simulation_steps_per_second": 2400.0,
    "share_of_pure_simulation": 0.5,
    "policy_lag_mean": 3.14,
    "policy_lag_max": 8,
    "policy_lag_unit": "SGD steps",
    "ledger": "learner  30 s\n\nBottleneck: learner (busy: learner 97%); backpropagation is the limit.",
}


def test_training_is_summarised_with_a_sentence_for_each_fact() -> None:
    assert summary("train", TRAIN).splitlines() == [
        "Training atari/pong makes 1,200 agent steps/s (4,800 frames/s).",
        "The environments alone would make 2,400: training reaches 50% of that, because it also needs the cores for "
        "the network.",
        "The policy that collected a sample is 3.1 SGD steps old on average when the sample is learned from, and 8 at "
        "most.",
        "Bottleneck: learner (busy: learner 97%); backpropagation is the limit.",
    ]


def test_off_policy_training_is_summarised() -> None:
    result = {"preset": "gym/CartPole-v1", "steps_per_second": 1200.0, "frames_per_second": 1200.0, "ledger": ""}
    result |= {"algorithm": "dqn", "sgd_steps_per_second": 600.0, "update_interval": 2.0, "batch_size": 64}
    assert summary("train", result).splitlines() == [
        "Training gym/CartPole-v1 makes 1,200 agent steps/s.",
        "DQN takes 600 SGD steps/s, one for every 2 agent steps, with batches of 64.",
    ]


def test_the_other_benchmarks_are_summarised() -> None:
    sim = {"preset": "a/b", "pure_simulation_steps_per_second": 2400.0, "num_envs": 64, "processes": 2}
    assert summary("sim", sim) == (
        "The environments of a/b alone make 2,400 agent steps/s: 64 of them in 2 processes, with random actions."
    )
    sampler = sim | {"sampler_steps_per_second": 2328.0, "share_of_pure_simulation": 0.97}
    assert summary("sampler", sampler).endswith("Handing the data on costs 3.0% of that.")
    times = {"sample_us": 40.0, "update_us": 10.0, "insert64_us": 10.0}
    replay = times | {
        "peers": {"slow": dict.fromkeys(times, 100.0), "lost": {"absent": "not installed"}},
        "ratio_to_best_peer": 5.0,
        "growth": {"sample": 2.5},
        "capacity": {"10000": times, "1000000": times, "10000000": {"absent": "no memory"}},
    }
    assert summary("replay", replay).splitlines() == [
        "A prioritised replay takes 40 us to sample a batch, 10 us to update its priorities and 10 us to insert 64 "
        "transitions.",
        "The fastest other library, slow, takes 5.0 times as long.",
        "Not installed here, and so not measured: lost (--install-peers).",
        "Sampling from 1,000,000 transitions takes 2.5 times as long as from 10,000.",
    ]

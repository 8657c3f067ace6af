from __future__ import annotations

import errno
import hashlib
import os
import resource
import signal
import subprocess
import sys
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rollmill.storage.checkpoints import (
    CheckpointConfig,
    CheckpointError,
    CheckpointStore,
    CheckpointWarning,
    load_checkpoint,
    read_header,
)


def make_store(folder: Path, **options: Any) -> CheckpointStore:
    return CheckpointStore(folder / "checkpoints", CheckpointConfig(**options))


def flip_bit(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(5, 6))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = torch.optim.Adam(model.parameters())
    sum(p.square().sum() for p in model.parameters()).backward()  # type: ignore[union-attr]
    optimiser.step()
    state = {
        "model": model.state_dict(),
        "optimiser": optimiser.state_dict(),
        "half": torch.randn(7, dtype=torch.bfloat16),
        "image": torch.arange(250, dtype=torch.uint8),
        "counters": {"agent_steps": 2**40, "huge": -(2**127) - 1, 3: 0.1, "nan": float("inf"), "flag": True},
        "nested": [(), (1, "é", None), [{}]],
    }
    store = make_store(tmp_path)
    path = store.save(state, agent_steps=123, metric=1.5)
    loaded = store.load_latest()

    assert loaded.path == path == tmp_path / "checkpoints" / "checkpoint_000001_steps_000000000123.pt"
    header = read_header(path)
    assert (header.format, header.agent_steps, header.metric) == (1, 123, 1.5)
    for name in ("counters", "nested"):
        assert loaded.state[name] == state[name]
    assert type(loaded.state["counters"]["flag"]) is bool
    for name in ("half", "image"):
        assert loaded.state[name].dtype == state[name].dtype  # type: ignore[attr-defined]
        assert torch.equal(loaded.state[name], state[name])  # type: ignore[arg-type]
    assert loaded.state["model"].keys() == model.state_dict().keys()
    assert all(torch.equal(loaded.state["model"][k], v) for k, v in model.state_dict().items())
    again = torch.optim.Adam(model.parameters())
    again.load_state_dict(loaded.state["optimiser"])
    for a, b in zip(again.state_dict()["state"].values(), optimiser.state_dict()["state"].values(), strict=True):
        assert all(torch.equal(a[k], b[k]) for k in b)


def test_a_checkpoint_is_an_ordinary_pytorch_file(tmp_path: Path) -> None:
    path = make_store(tmp_path).save({"x": torch.ones(3)}, 1)
    assert torch.equal(torch.load(path, weights_only=True)["x"], torch.ones(3))


def test_a_view_does_not_drag_its_arena_along(tmp_path: Path) -> None:
    arena = torch.zeros(10_000_000)
    path = make_store(tmp_path).save({"x": arena[5:8]}, 1)
    assert path.stat().st_size < 10_000
    assert load_checkpoint(path)["x"].tolist() == [0, 0, 0]


class _NotData:
    pass


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (np.float64(1.0), "numpy.float64"),
        (np.zeros(2), "numpy.ndarray"),
        ({1, 2}, "builtins.set"),
        (_NotData(), "_NotData"),
        (torch.float32, "torch.dtype"),
        (Path("x"), "Path"),
    ],
)
def test_what_weights_only_would_refuse_is_refused_before_writing(tmp_path: Path, value: Any, named: str) -> None:
    store = make_store(tmp_path)
    with pytest.raises(CheckpointError, match=rf"state\['a'\]\[1\]\['b'\] is a .*{named}.*convert"):
        store.save({"a": [0, {"b": value}]}, 1)
    assert store.paths() == []
    with pytest.raises(CheckpointError, match=r"state\['a'\] has the key 1.5"):
        store.save({"a": OrderedDict({1.5: 0})}, 1)


def test_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    store = make_store(tmp_path, keep=2)
    for step, metric in enumerate([None, 1.0, 3.0, float("nan"), 2.0, 3.0], start=1):
        store.save({"step": step}, step, metric)
    assert [load_checkpoint(p)["step"] for p in store.paths()] == [6, 5]
    assert store.load_best().state == {"step": 6}, "of equal ones the newest, which has learned for longer"
    assert read_header(store.best_path).metric == 3.0
    assert {p.name for p in store.folder.iterdir()} == {"best.pt", *(p.name for p in store.paths())}
    # Another process, as after a resume, knows what the best was.
    again = make_store(tmp_path, keep=2)
    again.save({"step": 7}, 7, 2.9)
    assert again.load_best().state == {"step": 6}
    again.save({"step": 8}, 8, 3.1)
    assert again.load_best().state == {"step": 8}


def test_keeps_the_untrained_one(tmp_path: Path) -> None:
    store = make_store(tmp_path, keep=1)
    store.save({"step": 0}, 0, is_initial=True)
    # Nothing of a batch that was not finished is counted, but its weights are not those of the beginning.
    store.save({"step": 1}, 0)
    assert load_checkpoint(store.initial_path) == {"step": 0}
    assert [load_checkpoint(p) for p in store.paths()] == [{"step": 1}]
    without = make_store(tmp_path / "without", keep_initial=False)
    without.save({"step": 0}, 0, is_initial=True)
    assert not without.initial_path.exists()


def test_an_evaluation_outranks_training_and_what_best_goes_by_is_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "rollmill.checkpoints")
    store, evaluator = make_store(tmp_path), make_store(tmp_path)
    assert read_header(store.save({"step": 1}, 1)).metric_name is None
    store.save({"step": 2}, 2, 50.0)
    assert read_header(store.best_path).metric_name == "training_return"
    assert evaluator.offer_best({"step": 1}, 1, 10.0), "training explores, and its number is of another kind"
    assert read_header(store.best_path) == (1, 1, 10.0, "evaluation_return", None)
    store.save({"step": 3}, 3, 60.0)
    assert store.load_best().state == {"step": 1}
    assert evaluator.offer_best({"step": 2}, 2, 10.0), "of equal ones the newest"
    assert not evaluator.offer_best({"step": 3}, 3, float("nan"))
    assert evaluator.offer_best({"step": 3}, 3, 11.0)
    assert store.load_best().state == {"step": 3}
    assert {p.name for p in store.folder.iterdir()} == {"best.pt", *(p.name for p in store.paths())}
    assert not make_store(tmp_path, keep_best=False).offer_best({"step": 4}, 4, 99.0)
    assert [record.getMessage() for record in caplog.records] == [
        "best.pt is of 2 agent steps, by training_return 50",
        "best.pt is of 1 agent steps, by evaluation_return 10",
        "best.pt is of 2 agent steps, by evaluation_return 10",
        "best.pt is of 3 agent steps, by evaluation_return 11",
    ]


def test_an_evaluation_of_another_kind_replaces_the_best_one(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    assert store.offer_best({"step": 1}, 1, 300.0, "mean return")
    assert store.offer_best({"step": 2}, 2, 0.6, "points against random")
    assert read_header(store.best_path).metric_of == "points against random"
    assert not store.offer_best({"step": 3}, 3, 0.5, "points against random")
    store.save({"step": 4}, 4, 400.0)
    assert store.load_best().state == {"step": 2}


def test_what_was_measured_may_be_long(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    kind = "points against " + ", ".join(f"\U0001f3ae{number}" for number in range(2000))
    assert store.offer_best({"step": 1}, 1, 0.6, kind)
    assert store.load_best().state == {"step": 1}
    assert not store.offer_best({"step": 2}, 2, 0.5, kind)
    assert store.offer_best({"step": 3}, 3, 0.5, f"{kind}, another")


def test_the_best_of_an_earlier_version_went_by_training(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.save({"step": 1}, 1, 50.0)
    content = store.best_path.read_bytes()
    end = content.rindex(b"rollmill ")
    header = b'{"format": 1, "agent_steps": 1, "metric": 50.0}'
    body = content[: end - 2]
    comment = b"rollmill " + hashlib.sha256(body + header).hexdigest().encode() + b" " + header
    store.best_path.write_bytes(body + len(comment).to_bytes(2, "little") + comment)
    assert store.load_best().state == {"step": 1}
    assert read_header(store.best_path).metric_name == "training_return"
    assert store.offer_best({"step": 2}, 2, 1.0)


@pytest.mark.slow
def test_the_learner_and_the_evaluator_may_write_the_best_at_once(tmp_path: Path) -> None:
    code = (
        "import sys; from rollmill.storage.checkpoints import CheckpointStore, CheckpointConfig\n"
        "store = CheckpointStore(sys.argv[1], CheckpointConfig(keep=1))\n"
        "for i in range(30):\n"
        "    state = {'i': i}\n"
        "    store.save(state, i, 1000.0 + i) if sys.argv[2] == 'learner' else store.offer_best(state, i, float(i))"
    )
    folder = str(tmp_path / "checkpoints")
    running = [subprocess.Popen([sys.executable, "-c", code, folder, role]) for role in ("learner", "evaluator")]
    assert [process.wait() for process in running] == [0, 0]
    assert read_header(make_store(tmp_path).best_path) == (1, 29, 29.0, "evaluation_return", None)


def test_without_keep_best_there_is_none(tmp_path: Path) -> None:
    store = make_store(tmp_path, keep_best=False)
    store.save({}, 1, 5.0)
    with pytest.raises(CheckpointError, match=r"no best checkpoint in .*use the latest"):
        store.load_best()


def test_a_damaged_best_is_replaced(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.save({"step": 1}, 1, 100.0)
    store.best_path.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"best\.pt is empty"):
        store.load_best()
    with pytest.warns(CheckpointWarning, match=r"best\.pt is empty; it will be replaced"):
        store.save({"step": 2}, 2, 1.0)
    assert store.load_best().state == {"step": 2}


def test_newest_is_the_last_written_also_after_going_back(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.save({"step": 100}, 100)
    flip_bit(store.save({"step": 200}, 200), 100)
    with pytest.warns(CheckpointWarning):
        assert store.load_latest().state == {"step": 100}
    store.save({"step": 150}, 150)
    assert store.load_latest().state == {"step": 150}


def test_no_checkpoint_at_all(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no checkpoint in .*without --resume"):
        make_store(tmp_path).load_latest()


def test_ends_of_runs_are_no_state_to_resume(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    assert not store.lacks_state
    store.save({"step": 100}, 100, is_end=True)
    assert store.lacks_state
    with pytest.raises(CheckpointError, match=r"not the state to resume: start a new run with one \(--init-from"):
        store.load_latest(to_resume=True)
    assert store.load_latest().state == {"step": 100}
    store.save({"step": 90}, 90)
    assert not store.lacks_state


def test_a_file_cut_anywhere_is_passed_over_for_the_previous_one(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.save({"step": 1, "x": torch.randn(50)}, 1)
    path = store.save({"step": 2, "x": torch.randn(50)}, 2)
    whole = path.read_bytes()
    for length in {*range(0, len(whole), 7), *range(len(whole) - 250, len(whole))}:
        path.write_bytes(whole[:length])
        with pytest.warns(CheckpointWarning, match=f"{path.name} (is|cannot).*; trying the one before it"):
            assert store.load_latest().state["step"] == 1
    path.write_bytes(whole)
    assert store.load_latest().state["step"] == 2


def test_a_flipped_bit_anywhere_is_noticed(tmp_path: Path) -> None:
    path = make_store(tmp_path).save({"x": torch.randn(50)}, 7)
    whole = path.read_bytes()
    header = whole.rfind(b"rollmill ")
    for at in {*range(0, header, 5), *range(header - 24, len(whole))}:
        flip_bit(path, at)
        with pytest.raises(CheckpointError, match=r"damaged|cut off|not a PyTorch file|did not write"):
            load_checkpoint(path)
        path.write_bytes(whole)


def test_damage_to_the_header_is_noticed(tmp_path: Path) -> None:
    path = make_store(tmp_path).save({"x": 1}, 7)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'{"format"', b'["format"'))
    with pytest.raises(CheckpointError, match="header cannot be read"):
        load_checkpoint(path)
    path.write_bytes(whole.replace(b'"agent_steps": 7', b'"agent_steps": 8'))
    with pytest.raises(CheckpointError, match="does not match its checksum"):
        load_checkpoint(path)
    path.write_bytes(whole.replace(b'"format": 1', b'"format": 9'))
    with pytest.raises(CheckpointError, match="format 9, this Rollmill reads up to 1: use a newer Rollmill"):
        read_header(path)


def test_foreign_files_are_named_as_such(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.pt"
    torch.save({"x": torch.ones(2)}, foreign)
    with pytest.raises(CheckpointError, match="PyTorch file that Rollmill did not write"):
        load_checkpoint(foreign)
    foreign.write_text("step,return\n")
    with pytest.raises(CheckpointError, match="is not a PyTorch file"):
        load_checkpoint(foreign)
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path / "missing.pt")
    foreign.unlink()
    foreign.mkdir()
    with pytest.raises(CheckpointError, match=r"cannot be read: .*directory"):
        load_checkpoint(foreign)


def test_a_forged_file_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, (str(tmp_path / "attacked"),))

    monkeypatch.setattr("rollmill.storage.checkpoint_file._portable", lambda value, where: value)
    path = make_store(tmp_path).save({"x": Attack()}, 1)
    with pytest.raises(CheckpointError, match="holds more than data and was not loaded"):
        load_checkpoint(path)
    assert not (tmp_path / "attacked").exists()


def test_none_usable_names_every_file_and_reason(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    first, second = store.save({"x": 1}, 1), store.save({"x": 2}, 2)
    flip_bit(first, 64)
    second.write_bytes(second.read_bytes()[:-1])
    expected = rf"none of the 2 .*{second.name} is cut off.*{first.name} is damaged"
    with pytest.warns(CheckpointWarning), pytest.raises(CheckpointError, match=expected):
        store.load_latest()


def test_a_link_to_nothing_is_passed_over(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.folder.mkdir()
    link = store.folder / "checkpoint_000009_steps_000000000009.pt"
    link.symlink_to(tmp_path / "removed.pt")
    with pytest.warns(CheckpointWarning), pytest.raises(CheckpointError, match=f"{link.name} is a link to nothing"):
        store.load_latest()
    with pytest.raises(CheckpointError, match="none of the 1"):
        store.latest_header()
    link.unlink()
    store.save({"step": 1}, 1)
    link.symlink_to(tmp_path / "removed.pt")
    with pytest.warns(CheckpointWarning, match="is a link to nothing; trying the one before it"):
        assert store.load_latest().state == {"step": 1}
    assert store.latest_header().agent_steps == 1


def test_the_header_is_that_of_the_checkpoint_that_is_loaded(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.save({"step": 100}, 100)
    damaged = store.save({"step": 200}, 200)
    flip_bit(damaged, 100)
    assert read_header(damaged).agent_steps == 200, "damage to the content alone"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.latest_header().agent_steps == 100
    with pytest.warns(CheckpointWarning):
        assert store.load_latest().state == {"step": 100}


def test_a_checkpoint_that_does_not_fit_is_passed_over(tmp_path: Path) -> None:
    def use(state: dict[str, Any]) -> None:
        if state["step"] != 1:
            raise ValueError("it is of another network")

    store = make_store(tmp_path)
    first, second = store.save({"step": 1}, 1), store.save({"step": 2}, 2)
    with pytest.warns(CheckpointWarning, match=f"{second.name} does not fit this run: it is of another network; try"):
        assert store.load_latest(use=use).path == first
    first.unlink()
    with pytest.warns(CheckpointWarning), pytest.raises(CheckpointError, match=f"none of the 1.*{second.name}"):
        store.load_latest(use=use)


def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    store = make_store(tmp_path, keep=1)
    store.save({"step": 1}, 1, 1.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then the write fails with EFBIG, as on a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(CheckpointError, match=f"could not write .*Errno {errno.EFBIG}.*make room"):
            store.save({"step": 2, "x": torch.zeros(100_000)}, 2, 2.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert store.load_latest().state == {"step": 1}
    assert store.load_best().state == {"step": 1}
    assert len(list(store.folder.iterdir())) == 2, "nothing half-written stays"


def test_when_one_is_due(tmp_path: Path) -> None:
    now = 1000.0
    config = CheckpointConfig(every_s=60, every_steps=500)
    store = CheckpointStore(tmp_path, config, clock=lambda: now)
    assert not store.is_due(10_000), "a resumed run does not start with a checkpoint"
    assert not store.is_due(10_499)
    assert store.is_due(10_500)
    now = 1059.9
    assert not store.is_due(10_001)
    now = 1060.0
    assert store.is_due(10_001)
    store.save({}, 10_001)
    now = 1119.0
    assert not store.is_due(10_500)
    assert store.is_due(10_501)
    never = CheckpointStore(tmp_path, CheckpointConfig(every_s=None), clock=lambda: now)
    assert never.load_latest().state == {}
    now = 1e9
    assert not never.is_due(10**12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every_s": 0}, r"checkpoint\.every_s=0: give a finite number above 0, or None for no such rule"),
        ({"every_s": float("nan")}, r"checkpoint\.every_s=nan"),
        ({"every_steps": 0}, r"checkpoint\.every_steps=0: give an integer of at least 1"),
        ({"keep": 0}, r"checkpoint\.keep=0: give an integer of at least 1"),
    ],
)
def test_config_refuses_what_cannot_be_meant(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CheckpointConfig(**options)


def test_importing_the_module_imports_no_torch() -> None:
    code = "import sys, rollmill.storage.checkpoints, rollmill.storage.random_states; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


_SAVER = """
import os, signal, sys, time, torch
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore
torch.set_num_threads(1)

def save_for_ever(tell):
    store = CheckpointStore(sys.argv[1], CheckpointConfig(keep=2))
    step = store.load_latest().state["step"] if store.paths() else 0
    os.write(tell, b"0\\n")
    while True:
        step += 1
        store.save({"step": step, "x": torch.full((200_000,), float(step))}, step, float(step))
        os.write(tell, b"%d\\n" % step)

if len(sys.argv) == 2:
    save_for_ever(1)
one_save_s = 0.01
# A child for each argument, killed that part of a save's time after so many saves.
for saves, part in (arg.split(":") for arg in sys.argv[2:]):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        save_for_ever(write)
    os.close(write)
    with open(read) as lines:
        finished = [lines.readline()]
        for _ in range(int(saves)):
            began = time.perf_counter()
            finished.append(lines.readline())
            one_save_s = time.perf_counter() - began
        time.sleep(float(part) * one_save_s)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        print(max(map(int, [*finished, *lines])), flush=True)
    sys.stdin.readline()
"""


def test_kill_at_any_moment_leaves_the_last_finished_save(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    store = CheckpointStore(folder, CheckpointConfig(keep=2))
    rng = np.random.default_rng(3)
    kills = [f"{i % 3}:{rng.uniform(0, 1.2):.3f}" for i in range(1, 25)]
    newest = interrupted = 0
    with subprocess.Popen(
        [sys.executable, "-c", _SAVER, str(folder), *kills], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in kills:
            finished = max(newest, int(process.stdout.readline()))
            interrupted += any(p.name.startswith(".writing") for p in folder.glob("*"))
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # the newest itself is whole, not only one before it
                state, best = store.load_latest().state, store.load_best().state
            newest = state["step"]
            # The kill may fall between the rename and the word of it.
            assert newest in (finished, finished + 1)
            assert 1 <= best["step"] <= newest
            for loaded in (state, best):
                assert torch.equal(loaded["x"], torch.full((200_000,), float(loaded["step"])))
            process.stdin.write("\n")
            process.stdin.flush()
    assert process.returncode == 0
    assert interrupted > 0, "no kill fell into a write: this test has tested nothing"
    store.save({"step": 1}, 1, 0.0)  # With a return: only then is best.pt looked at, and what was written beside it.
    assert len(list(folder.iterdir())) == 3, "what a killed writer left half-written is gone"


def test_a_reader_beside_a_writer_always_gets_a_whole_one(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    process = subprocess.Popen([sys.executable, "-c", _SAVER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for _ in range(2):
            process.stdout.readline()
        seen = [CheckpointStore(folder, CheckpointConfig()).load_latest().state["step"] for _ in range(30)]
    finally:
        process.kill()
        process.communicate()
    assert seen == sorted(seen)
    assert seen[-1] > seen[0]

"""The benchmark against peers: its clock, its processes, its verdicts, and the loop that was written for it."""

import importlib.util
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def assert_ends(pid: int) -> None:
    """The process ends; it may remain as a zombie until it is waited for."""
    stat, deadline = Path(f"/proc/{pid}/stat"), time.monotonic() + 10
    while stat.exists() and stat.read_text().rsplit(")", 1)[1][1] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def peers() -> ModuleType:
    return load("benchmark_peers", BENCHMARKS / "peers.py")


@pytest.fixture(scope="module")
def window() -> Iterator[ModuleType]:
    yield load("window", BENCHMARKS / "peers" / "window.py")
    del sys.modules["window"]


@pytest.fixture(scope="module")
def networks() -> Iterator[ModuleType]:
    yield load("networks", BENCHMARKS / "peers" / "networks.py")
    del sys.modules["networks"]


@pytest.fixture(scope="module")
def cleanrl(window: ModuleType, networks: ModuleType) -> ModuleType:
    pytest.importorskip("envpool")
    return load("cleanrl_envpool_ppo", BENCHMARKS / "peers" / "cleanrl_envpool_ppo.py")


class TestWindow:
    def test_counts_between_updates_after_the_warm_up(self, window: ModuleType) -> None:
        clock = window.Window(4.0, 10.0)
        for now, steps in ((100.0, 50), (105.0, 1000), (111.0, 2000), (113.0, 2600), (116.0, 4000), (117.0, 9999)):
            clock.update(steps, now)
        assert clock.is_full
        assert clock.steps_per_second == pytest.approx((4000 - 2000) / (116.0 - 111.0))

    def test_counts_the_seconds_on_a_core(self, window: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        cpu = iter((7.0, 8.0, 9.5))
        monkeypatch.setattr(time, "process_time", lambda: next(cpu))
        clock = window.Window(4.0, 10.0)
        for now, steps in ((100.0, 50), (111.0, 2000), (113.0, 2600), (116.0, 4000)):
            clock.update(steps, now)
        assert clock.steps_per_cpu_second == pytest.approx((4000 - 2000) / (9.5 - 7.0))

    def test_an_update_without_progress_does_not_move_its_edges(self, window: ModuleType) -> None:
        clock = window.Window(4.0, 0.0)
        for now, steps in ((0.0, 0), (0.5, 0), (2.0, 100), (5.0, 100)):
            clock.update(steps, now)
        assert not clock.is_full
        assert clock.steps_per_second == pytest.approx(50.0)

    def test_too_short(self, window: ModuleType) -> None:
        clock = window.Window(1.0, 1.0)
        clock.update(0, 0.0)
        clock.update(10, 2.0)
        with pytest.raises(RuntimeError, match="measure for longer"):
            _ = clock.steps_per_second

    def test_the_report_is_one_line_of_json(self, window: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
        window.report("p", "atari", 10.0, frameskip=4, precision="fp32", config={"num_envs": 2}, packages=("torch",))
        result = json.loads(capsys.readouterr().out)
        assert result == {
            "peer": "p",
            "env": "atari",
            "steps_per_second": 10.0,
            "frames_per_second": 40.0,
            "precision": "fp32",
            "config": {"num_envs": 2},
            "versions": {"torch": version("torch")},
        }


class TestRun:
    def test_reads_the_last_line(self, peers: ModuleType) -> None:
        assert peers.run([sys.executable, "-c", 'print("log"); print(\'{"a": 1}\')'], 60) == {"a": 1}

    def test_a_failure_is_shown(self, peers: ModuleType) -> None:
        with pytest.raises(peers.AbsentError, match=r"failed \(3\): the reason"):
            peers.run([sys.executable, "-c", "print('the reason'); raise SystemExit(3)"], 60)

    @pytest.mark.parametrize("code", ["pass", "print('no json')"])
    def test_an_end_without_json(self, peers: ModuleType, code: str) -> None:
        with pytest.raises(peers.AbsentError, match="did not end with JSON"):
            peers.run([sys.executable, "-c", code], 60)

    def test_too_long_and_nothing_left(self, peers: ModuleType, tmp_path: Path) -> None:
        file = tmp_path / "pid"
        code = (
            "import subprocess, sys, time, os; p = subprocess.Popen(['sleep', '600'])\n"
            f"open({str(file)!r} + '.new', 'w').write(str(p.pid)); os.rename({str(file)!r} + '.new', {str(file)!r})\n"
            "time.sleep(600)"
        )
        with pytest.raises(peers.AbsentError, match="did not end within 3 s"):
            peers.run([sys.executable, "-c", code], 3)
        assert_ends(int(file.read_text()))

    def test_a_terminated_comparison_takes_its_peers_with_it(self, tmp_path: Path) -> None:
        file = tmp_path / "pid"
        peer = f"import os, time; open({str(file)!r}, 'w').write(f'{{os.getpid()}} '); time.sleep(600)"
        main = (
            f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); import peers\n"
            f"peers._ROLLMILL = [sys.executable, '-c', {peer!r}]; peers.PEERS = (); peers.main()"
        )
        comparison = subprocess.Popen([sys.executable, "-c", main])
        deadline = time.monotonic() + 60
        while not (file.exists() and file.read_text().endswith(" ")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        comparison.terminate()
        assert comparison.wait(30) == 128 + signal.SIGTERM
        assert_ends(int(file.read_text()))


class TestComparison:
    def test_medians_and_ratios(self, peers: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """With real processes in place of Rollmill and a peer: scripts that print given lines."""
        script = tmp_path / "peer.py"
        script.write_text(
            "import json, pathlib\nf = pathlib.Path(__file__).with_suffix('.count')\n"
            "n = int(f.read_text()) + 1 if f.exists() else 1\nf.write_text(str(n))\n"
            "print(json.dumps({'steps_per_second': 10.0 * n, 'frames_per_second': 40.0 * n, 'precision': 'fp32', "
            "'versions': {'sample-factory': '2.1.1', 'torch': '2.13.0'}}))\n"
        )
        rollmill = tmp_path / "rollmill.py"
        rollmill.write_text('print(\'{"steps_per_second": 100.0, "frames_per_second": 400.0}\')\n')
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "python").symlink_to(sys.executable)
        peer = replace(peers.PEERS[0], script=str(script), environment=str(tmp_path), imports="json")
        failing = replace(peer, name="failing", script=str(tmp_path / "missing.py"))
        monkeypatch.setattr(peers, "PEERS", (peer, failing))
        monkeypatch.setattr(peers, "_ROLLMILL", [sys.executable, str(rollmill)])
        monkeypatch.setattr(peers, "_ROOT", tmp_path)
        result = peers.measure("atari", 1.0, 3, ())
        system = result["systems"]["sample-factory"]
        assert system["all_frames_per_second"] == [40.0, 80.0, 120.0]
        assert system["frames_per_second"] == 80.0
        assert system["rollmill_over_this"] == pytest.approx(100.0 / 20.0)
        assert result["systems"]["rollmill"]["rollmill_over_this"] == 1.0
        assert "missing.py" in result["absent"]["failing"]
        text = peers.table(result)
        assert "| sample-factory | sample-factory 2.1.1 | 80 | 20 | 5.00x | fp32 |" in text
        assert f"| rollmill | rollmill {version('rollmill')} | 400 | 100 |" in text
        assert "| failing | | absent: failed (2)" in text

    def test_the_search_takes_the_fastest_that_runs(
        self, peers: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        script = tmp_path / "peer.py"
        script.write_text(
            "import json, sys\nrate = float(sys.argv[-1])\nassert rate\n"
            "print(json.dumps({'steps_per_second': rate, 'frames_per_second': rate}))\n"
        )
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "python").symlink_to(sys.executable)
        candidates = {"atari": (("10",), ("30",), ("0",), ("20",)), "cartpole": (("0",), ("00",))}
        peer = replace(peers.PEERS[0], script=str(script), environment=str(tmp_path), candidates=candidates)
        assert peers.search(peer, "atari", 1.0) == ("30",)
        assert peers.search(peer, "atari", 0.0) == ("10",)
        assert peers.search(peer, "vizdoom", 1.0) == ()
        assert "AssertionError" in capfd.readouterr().err
        with pytest.raises(peers.AbsentError, match="none of its configurations runs"):
            peers.search(peer, "cartpole", 1.0)

    @pytest.mark.slow
    def test_a_peer_that_does_not_install_is_absent(self, peers: ModuleType, tmp_path: Path) -> None:
        peer = replace(peers.PEERS[0], environment=str(tmp_path / "venv"), requirements="no-such-file.txt")
        with pytest.raises(peers.AbsentError, match=r"does not install: .*no-such-file"):
            peers.install(peer)


class TestCleanRL:
    def test_advantages_equal_their_definition(self, cleanrl: ModuleType) -> None:
        rng = np.random.default_rng(0)
        steps, envs, gamma, lam = 7, 5, 0.99, 0.95
        reward, value = rng.normal(size=(steps, envs)), rng.normal(size=(steps + 1, envs))
        ended = (rng.random((steps, envs)) < 0.3).astype(float)
        expected = np.zeros((steps, envs))
        for b in range(envs):
            for t in range(steps):
                weight = 1.0
                for k in range(t, steps):
                    going = 1 - ended[k, b]
                    expected[t, b] += weight * (reward[k, b] + gamma * going * value[k + 1, b] - value[k, b])
                    weight *= gamma * lam * going
        got = cleanrl.advantages(*(torch.from_numpy(x) for x in (reward, value, ended)))
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12)

    def test_micro_batches_do_not_change_the_step(self, cleanrl: ModuleType) -> None:
        data = cleanrl.Update(
            torch.randint(0, 256, (16, 4, 84, 84), dtype=torch.uint8),
            torch.randint(0, 4, (16,)),
            -torch.rand(16),
            torch.randn(16),
            torch.randn(16),
        )
        gradients: list[list[Any]] = []
        for micro_batch in (16, 4):
            torch.manual_seed(0)
            net = cleanrl.nature_net(4, cleanrl.PRECISIONS["fp32-nhwc"])
            cleanrl.learn(net, torch.optim.SGD(net.parameters(), 0.0), data, micro_batch)
            gradients.append([p.grad for p in net.parameters()])
        for whole, summed in zip(*gradients, strict=True):
            torch.testing.assert_close(whole, summed, rtol=1e-3, atol=1e-6)


class TestNetworks:
    @pytest.mark.parametrize("precision", ["fp32-nchw", "fp32-nhwc", "bf16-nhwc"])
    def test_the_nature_net_takes_pixels_of_any_dtype(self, networks: ModuleType, precision: str) -> None:
        net = networks.make_network("atari", precision)
        pixels = torch.randint(0, 256, (3, 4, 84, 84), dtype=torch.uint8)
        logits, value = net(pixels)
        assert logits.shape == (3, 4)
        assert value.shape == (3,)
        assert logits.dtype == value.dtype == torch.float32
        torch.testing.assert_close(net(pixels.float()), (logits, value))

    def test_cartpole_has_one_precision(self, networks: ModuleType) -> None:
        assert networks.fastest("cartpole") == "fp32-nchw"
        logits, value = networks.make_network("cartpole", "fp32-nchw")(torch.zeros(3, 4))
        assert (logits.shape, value.shape) == ((3, 2), (3,))


class TestRequirements:
    def test_every_peer_of_an_environment_installs_the_same(self, peers: ModuleType) -> None:
        """The first of them makes the environment for all."""
        requirements = {(peer.environment, peer.requirements) for peer in peers.PEERS}
        assert len({environment for environment, _ in requirements}) == len(requirements)

    def test_torch_and_the_systems_are_pinned(self, peers: ModuleType) -> None:
        for name in {peer.requirements for peer in peers.PEERS}:
            lines = (BENCHMARKS / "peers" / name).read_text().splitlines()
            assert "torch==2.13.0" in lines, name

    def test_scripts_and_candidates_are_complete(self, peers: ModuleType) -> None:
        for peer in peers.PEERS:
            assert (BENCHMARKS / "peers" / peer.script).exists()
            assert set(peer.candidates) == set(peer.envs)

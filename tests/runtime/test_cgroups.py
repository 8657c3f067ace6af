"""Memory and CPU limits, read from trees of files like the kernel's."""

from __future__ import annotations

from pathlib import Path

from rollmill.runtime import cgroups

MEMINFO = "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    8000000 kB\n"


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def _version_2(tmp_path: Path, extra: dict[str, str]) -> Path:
    return _write(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/jobs/mine\n",
            "proc/self/mountinfo": "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n",
            "sys/fs/cgroup/jobs/mine/memory.max": "max\n",
        }
        | {f"sys/fs/cgroup/{name}": text for name, text in extra.items()},
    )


def _version_1(tmp_path: Path, extra: dict[str, str]) -> Path:
    return _write(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/\n",
            "proc/self/mountinfo": (
                "31 30 0:27 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
                "32 30 0:28 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
                "33 30 0:29 / /proc rw - proc proc rw\n"
            ),
        }
        | {f"sys/fs/cgroup/{name}": text for name, text in extra.items()},
    )


def test_without_limits_the_machine_decides(tmp_path: Path) -> None:
    root = _version_2(tmp_path, {})
    assert cgroups.available_memory(root) == 8_000_000 * 1024
    assert cgroups.cpu_quota(root) is None
    assert cgroups.oom_kills(root) == 0


def test_version_2_limits_of_enclosing_groups_count(tmp_path: Path) -> None:
    root = _version_2(
        tmp_path,
        {
            "jobs/memory.max": "4000000000\n",
            "jobs/memory.current": "3000000000\n",
            "jobs/memory.stat": "anon 5\ninactive_file 500000000\n",
            "jobs/mine/cpu.max": "250000 100000\n",
            "jobs/cpu.max": "150000 100000\n",
            "cpu.max": "max 100000\n",
            "jobs/mine/memory.events": "low 0\noom 4\noom_kill 3\n",
        },
    )
    assert cgroups.available_memory(root) == 1_500_000_000
    assert cgroups.cpu_quota(root) == 1.5
    assert cgroups.oom_kills(root) == 3


def test_version_1_in_a_container_that_sees_the_hosts_path(tmp_path: Path) -> None:
    root = _version_1(
        tmp_path,
        {
            "memory/memory.limit_in_bytes": "2000000000\n",
            "memory/memory.usage_in_bytes": "1900000000\n",
            "memory/memory.stat": "cache 7\ntotal_inactive_file 400000000\n",
            "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
            "cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
            "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    )
    assert cgroups.available_memory(root) == 500_000_000
    assert cgroups.cpu_quota(root) == 0.5
    assert cgroups.oom_kills(root) == 2
    # In a hybrid hierarchy, the second version has no controllers, and comes first.
    mounts = root / "proc/self/mountinfo"
    mounts.write_text("29 30 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n" + mounts.read_text())
    assert cgroups.oom_kills(root) == 2


def test_version_1_says_unlimited_with_large_and_negative_numbers(tmp_path: Path) -> None:
    root = _version_1(
        tmp_path,
        {
            "memory/memory.limit_in_bytes": "9223372036854771712\n",
            "memory/memory.usage_in_bytes": "1900000000\n",
            "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    )
    assert cgroups.available_memory(root) == 8_000_000 * 1024
    assert cgroups.cpu_quota(root) is None


def test_more_used_than_allowed_leaves_nothing(tmp_path: Path) -> None:
    root = _version_2(tmp_path, {"jobs/mine/memory.max": "1000\n", "jobs/mine/memory.current": "5000\n"})
    assert cgroups.available_memory(root) == 0


def test_this_machine_tells_something_plausible() -> None:
    assert 1 << 20 < cgroups.available_memory() < 1 << 60
    quota = cgroups.cpu_quota()
    assert quota is None or quota > 0


def test_the_memory_limit_is_the_smallest_of_the_enclosing_groups(tmp_path: Path) -> None:
    assert cgroups.memory_limit(_version_2(tmp_path / "none", {})) is None
    limits = {"jobs/mine/memory.max": "5000000000\n", "jobs/memory.max": "2000000000\n", "memory.max": "max\n"}
    assert cgroups.memory_limit(_version_2(tmp_path / "two", limits)) == 2_000_000_000
    unlimited = {"memory/memory.limit_in_bytes": "9223372036854771712\n"}
    assert cgroups.memory_limit(_version_1(tmp_path / "one", unlimited)) is None
    limited = {"memory/memory.limit_in_bytes": "3000000000\n"}
    assert cgroups.memory_limit(_version_1(tmp_path / "limited", limited)) == 3_000_000_000

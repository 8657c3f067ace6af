"""The level cache: maps are copied whole or not at all, and no failure ends a run."""

from __future__ import annotations

import logging
import os
import threading
import zipfile

import pytest

from rollmill.envs.dmlab_cache import InvalidLevelCache, LevelCache

KEY = "d41d8cd98f00b204e9800998ecf8427e"


def a_map(path, content=b"walls"):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("maps/map.bsp", content)
    return str(path)


def test_a_map_that_was_written_is_fetched(tmp_path):
    cache = LevelCache(tmp_path / "cache")
    made, wanted = a_map(tmp_path / "made.pk3"), str(tmp_path / "wanted.pk3")
    assert cache.fetch(KEY, wanted) is False
    assert not os.path.exists(wanted)
    cache.write(KEY, made)
    assert cache.fetch(KEY, wanted) is True
    assert (tmp_path / "wanted.pk3").read_bytes() == (tmp_path / "made.pk3").read_bytes()
    assert (cache.hits, cache.misses) == (1, 1)
    # A key that is a file name is the file's name, as in other caches of this kind.
    assert os.listdir(tmp_path / "cache") == [KEY]
    assert cache.size() == (1, os.path.getsize(made))
    assert LevelCache(tmp_path / "cache").fetch(KEY, wanted)


def test_the_first_map_of_a_key_stays(tmp_path):
    cache = LevelCache(tmp_path / "cache")
    cache.write(KEY, a_map(tmp_path / "first.pk3", b"first"))
    cache.write(KEY, a_map(tmp_path / "second.pk3", b"second"))
    cache.fetch(KEY, str(tmp_path / "wanted.pk3"))
    assert (tmp_path / "wanted.pk3").read_bytes() == (tmp_path / "first.pk3").read_bytes()


@pytest.mark.parametrize("key", ["../outside", "/etc/passwd", "a/b", "", ".", "..", ".hidden", "x" * 300, "ä", "a\0b"])
def test_no_key_leaves_the_folder(tmp_path, key):
    cache = LevelCache(tmp_path / "cache")
    cache.write(key, a_map(tmp_path / "made.pk3"))
    assert cache.fetch(key, str(tmp_path / "wanted.pk3"))
    assert not cache.fetch(key + "/", str(tmp_path / "wanted.pk3"))
    (name,) = os.listdir(tmp_path / "cache")
    assert name.startswith("sha256-")
    assert sorted(os.listdir(tmp_path)) == ["cache", "made.pk3", "wanted.pk3"]


def test_what_is_no_map_is_a_miss_and_is_replaced(tmp_path):
    cache = LevelCache(tmp_path)
    made, wanted = a_map(tmp_path / "made.pk3"), str(tmp_path / "wanted.pk3")
    whole = (tmp_path / "made.pk3").read_bytes()
    for broken in (b"", whole[: len(whole) // 2]):
        (tmp_path / KEY).write_bytes(broken)
        assert not cache.fetch(KEY, wanted)
    cache.write(KEY, made)
    assert cache.fetch(KEY, wanted)


def test_readers_see_whole_maps_while_others_write(tmp_path):
    sources = [a_map(tmp_path / f"{number}.pk3", bytes([65 + number]) * 2_000_000) for number in range(4)]
    allowed = {(tmp_path / f"{number}.pk3").read_bytes() for number in range(4)}
    folder, seen, errors = tmp_path / "cache", [], []
    start, written = threading.Barrier(8), threading.Event()

    def write(number):
        try:
            cache = LevelCache(folder)
            start.wait()
            for turn in range(20):
                cache._copy(sources[number], cache._path_of(KEY))  # also where there is one, unlike write
                cache.write(f"key{turn}", sources[number])
        except Exception as error:
            errors.append(error)

    def read(number):
        try:
            cache, wanted = LevelCache(folder), tmp_path / f"wanted{number}"
            start.wait()
            while True:
                is_last = written.is_set()  # one more round finds what has been written by then
                if cache.fetch(KEY, str(wanted)):
                    seen.append(wanted.read_bytes() in allowed)
                if is_last:
                    return
        except Exception as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    readers = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in [*writers, *readers]:
        thread.start()
    for thread in writers:
        thread.join()
    written.set()
    for thread in readers:
        thread.join()
    assert errors == []
    assert len(seen) > 0
    assert all(seen)
    assert sorted(os.listdir(folder)) == sorted([KEY, *(f"key{turn}" for turn in range(20))])


def test_a_folder_that_cannot_be_used_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InvalidLevelCache, match=r"env.dmlab.level_cache='.*' cannot be used \(.*\): give a folder"):
            LevelCache(folder)


def test_a_folder_that_disappears_costs_time_and_is_reported_once(tmp_path, caplog):
    cache = LevelCache(tmp_path / "cache")
    made = a_map(tmp_path / "made.pk3")
    os.rmdir(tmp_path / "cache")
    with caplog.at_level(logging.WARNING, "rollmill.envs.dmlab_cache"):
        cache.write(KEY, made)
        cache.write(KEY, made)
        assert not cache.fetch(KEY, str(tmp_path / "wanted.pk3"))
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        f"the level cache {tmp_path / 'cache'} failed, maps are generated instead"
    ]


def test_a_copy_that_fails_leaves_nothing_behind(tmp_path, caplog):
    cache = LevelCache(tmp_path / "cache")
    cache.write(KEY, str(tmp_path / "nowhere.pk3"))
    cache.write(KEY, a_map(tmp_path / "made.pk3"))
    assert not cache.fetch(KEY, str(tmp_path / "no" / "folder.pk3"))
    assert (cache.hits, cache.misses) == (0, 1)
    assert os.listdir(tmp_path / "cache") == [KEY]
    assert len(caplog.records) == 1


def test_a_folder_in_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    LevelCache("~/levels/dmlab")
    assert (tmp_path / "levels" / "dmlab").is_dir()

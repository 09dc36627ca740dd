"""Exceptions and their fields, options, and how the program is found."""

import asyncio
import os
import pickle
import socket
import typing
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import pytest

import onehold
import onehold.aio
from onehold._options import duration
from onehold.errors import moment


def test_locked_says_who_holds_since_when_and_why():
    before = datetime.now(timezone.utc)
    with onehold.lock("a", message="nightly", owner="runner-7") as hold:
        with pytest.raises(onehold.Locked) as caught:
            onehold.lock("a").acquire()
        error = caught.value
        assert type(error) is onehold.Locked and error.code == "LOCKED"
        assert (error.host, error.message, error.owner) == (socket.gethostname(), "nightly", "runner-7")
        assert error.pid == os.getpid() == onehold.check("a")["program"]["pid"]
        assert str(error).startswith(f"`a` is held by process {os.getpid()} (")
        assert error.holder["hold"] == hold.number
        assert before - timedelta(seconds=1) <= error.since <= datetime.now(timezone.utc)
        assert "nightly" in str(error)
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.since, again.message) == (str(error), error.since, error.message)


def test_timed_out_is_locked_and_a_timeout_error():
    with onehold.lock("a", message="why"):
        with pytest.raises(onehold.TimedOut) as caught:
            onehold.lock("a", wait=0.05).acquire()
    error = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(error, onehold.Locked) and isinstance(error, TimeoutError)
    assert (error.code, error.message) == ("TIMEOUT", "why")
    assert str(error).startswith("timed out after 0.05s: `a` is held by process ")


def test_async_errors_are_the_same():
    async def main():
        async with onehold.aio.lock("a", message="why"):
            with pytest.raises(onehold.Locked) as caught:
                await onehold.aio.lock("a").acquire()
            assert caught.value.message == "why"
            with pytest.raises(onehold.TimedOut):
                async with onehold.aio.lock("a", wait=0.05):
                    pass

    asyncio.run(main())


def test_usage_and_store_errors(tmp_path):
    with pytest.raises(onehold.Error) as caught:
        onehold.lock("a/../b").acquire()
    assert caught.value.code == "USAGE" and not isinstance(caught.value, onehold.Locked)
    (tmp_path / "file").write_text("")
    with pytest.raises(onehold.Error):
        onehold.lock("a", directory=tmp_path / "file").acquire()
    with pytest.raises(onehold.Error):
        onehold.check("a/../b")
    with pytest.raises(TypeError):
        onehold.lock("a", wiat=3)


def test_not_found(tmp_path, monkeypatch):
    with pytest.raises(onehold.NotFound) as caught:
        onehold.lock("a", program=tmp_path / "none").acquire()
    assert str(caught.value) == f"cannot start `{tmp_path / 'none'}`: No such file or directory"

    async def main():
        async with onehold.aio.lock("a", program=tmp_path / "none"):
            pass

    with pytest.raises(onehold.NotFound):
        asyncio.run(main())
    with pytest.raises(onehold.NotFound):
        onehold.acquire("a", ttl=1, program=tmp_path / "none")

    # A program that is no onehold ends without an answer.
    with pytest.raises(onehold.Error) as caught:
        onehold.lock("a", program="/bin/true").acquire()
    assert "exited with 0 without an answer" in str(caught.value)

    monkeypatch.setattr("onehold._program._scripts", lambda: iter([str(tmp_path)]))
    monkeypatch.setenv("PATH", str(tmp_path))
    lock = onehold.lock("a")
    with pytest.raises(onehold.NotFound) as caught:
        lock.acquire()
    assert "on PATH" in str(caught.value)


def test_program_is_not_looked_for_above_a_target(monkeypatch):
    def scripts(site_packages):
        monkeypatch.setattr("onehold._program.__file__", f"{site_packages}/onehold/_program.py")
        return list(onehold._program._scripts())

    target = scripts("/tmp/a/b/deps")
    assert "/tmp/a/b/deps/bin" in target and "/tmp/bin" not in target and "/tmp/a/bin" not in target
    assert "/opt/x/bin" in scripts("/opt/x/lib/python3.9/site-packages")
    assert "/opt/x/local/bin" in scripts("/opt/x/local/lib64/python3/dist-packages")
    assert "/tmp/bin" not in scripts("/tmp/lib/python3/deps")


def test_types_can_be_read_while_the_program_runs():
    for function in (onehold.lock, onehold.try_lock, onehold.acquire, onehold.aio.lock, onehold.aio.try_lock):
        assert typing.get_type_hints(function)["options"]


def test_durations():
    assert [duration(value) for value in ("5m", "forever", 3, 0.25, timedelta(minutes=1), float("inf"), 1e-7)] == [
        *("5m", "forever", "3.000000", "0.250000", "60.000000", "forever", "0.000000"),
    ]
    for value in (-1, float("nan"), timedelta(seconds=-1)):
        with pytest.raises(ValueError):
            duration(value)


def test_moments():
    assert moment("2026-11-26T11:45:02.373234752Z") == datetime(2026, 11, 26, 11, 45, 2, 373234, timezone.utc)
    assert moment("2026-11-26T11:45:02Z") == datetime(2026, 11, 26, 11, 45, 2, 0, timezone.utc)
    assert moment(None) is None


def test_release_twice_and_nested_locks():
    outer = onehold.lock("a").acquire()
    with outer, onehold.lock("b"):
        outer.release()
        assert onehold.check("a")["state"] == "free"
        assert onehold.check("b")["state"] == "held"
    outer.release()


def test_another_thread_may_release():
    hold = onehold.lock("a").acquire()
    with ThreadPoolExecutor(1) as other:
        other.submit(hold.release).result()
    assert onehold.check("a")["state"] == "free"


def test_text_with_half_of_a_character_is_refused_at_once():
    with pytest.raises(UnicodeEncodeError):
        onehold.lock("a\udc80b")
    with onehold.lock("größe", message="😀"):
        assert onehold.check("größe")["message"] == "😀"

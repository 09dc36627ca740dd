"""The same on etcd."""

import subprocess
import time

import pytest
from conftest import Etcd, eventually, quickest, start

import onehold
import onehold.aio

INCREMENT = """
    import pathlib, sys, onehold
    file, url = pathlib.Path(sys.argv[1]), sys.argv[2]
    for _ in range(20):
        with onehold.lock("counter", wait="forever", directory=url):
            file.write_text(str(int(file.read_text()) + 1))
"""


def test_8_processes(etcd, tmp_path):
    file = tmp_path / "counter"
    file.write_text("0")
    workers = [start(INCREMENT, file, f"{etcd.url}/count") for _ in range(8)]
    assert [worker.wait() for worker in workers] == [0] * 8
    assert file.read_text() == "160"


def test_hold_break_and_lease(etcd, program, monkeypatch):
    monkeypatch.setenv("ONEHOLD_DIR", f"{etcd.url}/rest")
    with pytest.raises(onehold.Lost) as error:
        with onehold.lock("a", message="why") as hold:
            assert hold.file is None
            with pytest.raises(onehold.Locked) as caught:
                onehold.lock("a").acquire()
            assert caught.value.message == "why"
            subprocess.run([program, "break", "-y", "a"], check=True, stderr=subprocess.DEVNULL)
            assert hold.lost.wait(10)
    assert error.value.number == hold.number
    with onehold.acquire("a", ttl=5) as lease:
        first = lease.expires_at
        lease.renew(ttl=60)
        assert lease.expires_at > first
    assert onehold.check("a")["state"] == "free"


def test_killed_interpreter_frees_the_lock(etcd, processes, monkeypatch):
    monkeypatch.setenv("ONEHOLD_DIR", f"{etcd.url}/killed")

    def seconds_until_free():
        process = processes("""
            import signal, onehold
            with onehold.lock("a"):
                print(flush=True)
                signal.pause()
        """)
        process.stdout.readline()
        killed = time.monotonic()
        process.kill()
        with onehold.lock("a", wait=10):
            return time.monotonic() - killed

    assert quickest(seconds_until_free) < 0.3


def test_hold_is_lost_in_time_if_etcd_is_gone(tmp_path):
    (tmp_path / "etcd").mkdir()
    member = Etcd(tmp_path / "etcd")
    try:
        hold = eventually(lambda: onehold.try_lock("a", ttl=10, directory=f"{member.url}/gone"))
    finally:
        member.end()
    # 0.6 of 10 s after the last renewal; others may have the lock 10 s after it.
    assert hold.lost.wait(8)
    began = time.monotonic()
    with pytest.raises(onehold.Lost) as error:
        hold.release()
    assert time.monotonic() - began < 1
    assert error.value.reason == "lost"

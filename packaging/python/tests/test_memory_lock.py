import importlib.util
import json
import pathlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

SOURCE = pathlib.Path(__file__).parent.parent / "examples" / "memory_lock.py"


@pytest.fixture
def module():
    spec = importlib.util.spec_from_file_location("memory_lock", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_has_40_lines():
    assert len([line for line in SOURCE.read_text().splitlines() if line.strip()]) <= 40


def test_names_of_the_module(module, tmp_path):
    lock = module.MemoryLock(tmp_path)
    other = module.MemoryLock(tmp_path)
    assert lock.status()["locked"] is False
    assert lock.acquire_nowait("write:tasks.json") is True
    assert other.acquire_nowait("write:tasks.json") is False
    with pytest.raises(module.LockError):
        other.acquire_blocking("write:tasks.json", max_wait=0.05)
    # What the other programs read.
    assert json.loads((tmp_path / "memory/.lock").read_text())["operation"] == "write:tasks.json"
    status = lock.status()
    assert (status["locked"], status["we_hold_it"], status["holder"]["operation"]) == (True, True, "write:tasks.json")
    assert other.status()["we_hold_it"] is False
    lock.release()
    lock.release()
    assert lock.status()["locked"] is False


def test_get_lock_and_decorator_in_the_workspace(module):
    assert module.get_lock() is module.get_lock()

    @module.with_lock("write:tasks.json")
    def work():
        with module.get_lock().acquire("nested"):
            pass
        return module.MemoryLock().acquire_nowait("other")

    for _ in range(2):
        assert work() is False
    assert not pathlib.Path("memory/.lock").exists()


def test_stale_lock_of_another_program(module, tmp_path):
    (tmp_path / "memory").mkdir()
    left = {"pid": 4194304, "session_id": "x", "acquired_at": "2020-01-01T00:00:00+00:00", "operation": "x"}
    (tmp_path / "memory/.lock").write_text(json.dumps(left))
    lock = module.MemoryLock(tmp_path)
    assert lock.acquire_nowait("y", break_stale=False) is False
    assert lock.acquire_nowait("y") is True
    lock.release()


def test_8_other_threads_are_refused(module, tmp_path):
    lock = module.MemoryLock(tmp_path)
    with lock.acquire("mine"), ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda _: lock.acquire_nowait("theirs"), range(8))) == [False] * 8
        assert lock.acquire_nowait("mine, once more") is True
        lock.release()


def test_another_thread_may_release(module, tmp_path):
    lock = module.MemoryLock(tmp_path)
    lock.acquire_blocking("mine")
    lock.acquire_blocking("mine, once more")
    with ThreadPoolExecutor(1) as other:
        other.submit(lock.release).result()
        assert lock.status()["we_hold_it"] is True
        other.submit(lock.release).result()
        assert other.submit(lock.acquire_nowait, "theirs").result() is True
    assert lock.acquire_nowait("mine") is False
    lock.release()
    assert lock.status()["locked"] is False


def test_8_threads_count(module, tmp_path):
    lock = module.MemoryLock(tmp_path)
    count = [0]

    def work(_):
        for _ in range(4):
            with lock.acquire("count", max_wait=30):
                number = count[0]
                threading.Event().wait(0.005)
                count[0] = number + 1

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert count == [32]

"""Who reads the answers of the server: the thread that waits for one, and another one for what nobody waits for."""

import linecache
import os
import pathlib
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import eventually

import onehold

needs_epoll = pytest.mark.skipif(not hasattr(__import__("select"), "epoll"), reason="it needs epoll")


def switches(thread):
    status = pathlib.Path(f"/proc/self/task/{thread}/status").read_text()
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])


@needs_epoll
def test_free_lock_wakes_no_other_thread():
    with onehold.lock("a"):
        own = threading.get_native_id()
    others = [int(thread) for thread in os.listdir("/proc/self/task") if int(thread) != own]
    others = {thread: switches(thread) for thread in others}
    assert others, "nothing would tell a loss"
    for _ in range(300):
        with onehold.lock("a"):
            pass
    # A thread that is slow to say that it reads may be preempted by the answer.
    assert sum(switches(thread) - before for thread, before in others.items()) < 60


def test_loss_that_nobody_waits_for_is_told(program):
    for _ in range(8):
        with pytest.raises(onehold.Lost):
            with onehold.lock("a") as hold:
                subprocess.run([program, "break", "--yes", "a"], check=True, stdout=subprocess.DEVNULL)
                assert hold.lost.wait(30)


def test_code_that_the_collector_runs_in_the_thread_that_reads_takes_locks(program, monkeypatch):
    tell = onehold._server.Server._tell
    taken = []

    def collect(server, event, answer):
        if event == "lost":
            with onehold.lock("b") as hold:
                taken.append((threading.get_native_id(), hold.number, onehold.check("b")["hold"]))
            onehold.acquire("c", ttl=60).release()
        tell(server, event, answer)

    monkeypatch.setattr(onehold._server.Server, "_tell", collect)
    for count in range(1, 4):
        with pytest.raises(onehold.Lost):
            with onehold.lock("a") as hold:
                subprocess.run([program, "break", "--yes", "a"], check=True, stdout=subprocess.DEVNULL)
                assert hold.lost.wait(30)
        assert len(taken) == count
    for thread, number, seen in taken:
        assert thread != threading.get_native_id() and number == seen


def test_answers_to_8_threads_come_to_each():
    def turns(name):
        numbers = set()
        for _ in range(100):
            with onehold.lock(name) as hold:
                numbers.add(hold.number)
            try:
                with onehold.lock("held", wait=0.001):
                    raise AssertionError("the lock was held")
            except onehold.Locked:
                pass
        return len(numbers)

    with onehold.lock("held"), ThreadPoolExecutor(8) as pool:
        assert list(pool.map(turns, [f"n{number}" for number in range(8)])) == [100] * 8


@needs_epoll
def test_reading_goes_on_after_a_thread_that_was_ended_while_it_read(program):
    with onehold.lock("a"):
        pass
    server = next(iter(onehold._server._current.values()))
    for _ in range(3):
        with pytest.raises(onehold.Lost):
            with onehold.lock("a") as hold:
                # As an exception leaves it that comes where there is no `try` yet.
                server._reading[0] = [0]
                subprocess.run([program, "break", "--yes", "a"], check=True, stdout=subprocess.DEVNULL)
                assert hold.lost.wait(30)
    eventually(lambda: not server._reading)


def test_wait_longer_than_a_thread_reads_itself_ends_when_the_lock_is_free():
    hold = onehold.lock("a").acquire()
    release = threading.Timer(3 * onehold._server.READS_FOR / 1000, hold.release)
    release.start()
    began = time.monotonic()
    with onehold.lock("a", wait="1m"):
        assert time.monotonic() - began > onehold._server.READS_FOR / 1000
    release.join()


def test_ctrl_c_at_any_line_of_the_end_frees_the_lock_and_another_thread_reads_again():
    package = os.path.dirname(onehold.__file__)
    rounds, left, missed = 0, 0, []

    def trace(frame, event, argument):
        nonlocal left
        if frame.f_code.co_name == "__del__":
            sys.settrace(None)
        if not frame.f_code.co_filename.startswith(package):
            return None
        # There Python takes no signal, and an exception of a tracer would not leave the `with` around it.
        source = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        left -= event == "line" and not source.startswith(("with ", "try:", "finally:"))
        if left == 0:
            raise KeyboardInterrupt
        return trace

    while left <= 0:
        rounds += 1
        try:
            with onehold.lock("a", wait=10):
                left = rounds
                sys.settrace(trace)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        # The server is asked once more for what nobody may have waited for.
        try:
            onehold.lock("a", wait=1).acquire().release()
        except onehold.TimedOut:
            missed.append(rounds)
        (server,) = onehold._server._current.values()
        if server._reading:
            missed.append(rounds)
    assert missed == [] and rounds > 20

"""How holds end: blocks, killed processes, forks, breaks, signals."""

import asyncio
import linecache
import os
import pathlib
import pty
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress

import pytest
from conftest import eventually, quickest

import onehold
import onehold.aio

# A process that holds `a`, and a forked child that lives on. It prints the PID of the child.
FORKS = {
    "os.fork": """
        import os, signal, onehold
        with onehold.lock("a"):
            child = os.fork()
            if child == 0:
                signal.pause()
            print(child, flush=True)
            signal.pause()
    """,
    "multiprocessing": """
        import multiprocessing, signal, onehold
        with onehold.lock("a"):
            child = multiprocessing.get_context("fork").Process(target=signal.pause)
            child.start()
            print(child.pid, flush=True)
            signal.pause()
    """,
    "os.fork, of an async lock": """
        import asyncio, os, signal, onehold.aio
        async def main():
            async with onehold.aio.lock("a"):
                child = os.fork()
                if child == 0:
                    signal.pause()
                print(child, flush=True)
                signal.pause()
        asyncio.run(main())
    """,
}


@pytest.mark.parametrize("how", FORKS)
def test_lock_of_a_killed_interpreter_is_free_within_300_ms_though_its_child_lives(processes, how):
    def seconds_until_free():
        process = processes(FORKS[how])
        child = int(process.stdout.readline())
        try:
            assert onehold.try_lock("a") is None
            killed = time.monotonic()
            process.kill()
            with onehold.lock("a", wait=10):
                freed = time.monotonic()
                os.kill(child, 0)
            return freed - killed
        finally:
            os.kill(child, signal.SIGKILL)

    assert quickest(seconds_until_free) < 0.3


def test_killed_interpreter_with_8_holds_frees_all(processes):
    def seconds_until_free():
        process = processes("""
            import signal, onehold
            holds = [onehold.lock(f"a{n}").acquire() for n in range(8)]
            print(flush=True)
            signal.pause()
        """)
        process.stdout.readline()
        killed = time.monotonic()
        process.kill()
        with onehold.lock(*(f"a{n}" for n in range(8)), wait=10):
            return time.monotonic() - killed

    assert quickest(seconds_until_free) < 0.3


def test_interpreter_that_ends_inside_a_block_frees_the_lock(processes):
    for end in ("sys.exit(3)", "os._exit(3)"):
        assert processes(f'import os, sys, onehold\nonehold.lock("a").acquire()\n{end}').wait() == 3
        with onehold.lock("a", wait=10):
            pass


def in_child(work):
    """Runs the function in a forked child. Its answer is whether all of it was true."""
    child = os.fork()
    if child == 0:
        # The alarm ends a child that hangs.
        signal.alarm(20)
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def test_forked_child_does_not_hold():
    with onehold.lock("a") as hold:

        def work():
            assert hold.lost.is_set()
            assert onehold.try_lock("a") is None
            with pytest.raises(onehold.Lost) as error:
                hold.release()
            assert (error.value.reason, error.value.number) == ("forked", hold.number)
            with onehold.lock("b"):
                assert onehold.try_lock("b") is None

        assert in_child(work)
        assert not hold.lost.is_set()
        assert onehold.try_lock("a") is None
        assert onehold.check("b")["state"] == "free"


def test_release_frees_the_lock_though_a_forked_child_lives():
    hold = onehold.lock("a").acquire()
    ready, end = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os.write(ready[1], b".")
        os.read(end[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    hold.release()
    again = onehold.try_lock("a")
    assert again is not None
    again.release()
    os.write(end[1], b".")
    assert os.waitpid(child, 0)[1] == 0


def write_ends_of_pipes():
    found = []
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        try:
            is_pipe = os.readlink(f"/proc/self/fd/{descriptor}").startswith("pipe:")
            flags = int(pathlib.Path(f"/proc/self/fdinfo/{descriptor}").read_text().split()[3], 8)
        except OSError:
            continue
        if is_pipe and flags & os.O_ACCMODE == os.O_WRONLY and descriptor > 2:
            found.append(descriptor)
    return found


def test_forks_while_8_threads_take_locks_copy_no_hold():
    before = write_ends_of_pipes()
    stop = threading.Event()
    taken = []

    def work(name):
        while not stop.is_set():
            with onehold.lock(name):
                taken.append(name)

    threads = [threading.Thread(target=work, args=(f"a{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    try:
        clean = sum(in_child(lambda: [].index(0) if write_ends_of_pipes() != before else 0) for _ in range(100))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert clean == 100
    assert len(taken) >= 8


def test_fork_while_another_thread_closes_a_pipe_copies_no_pipe():
    onehold.lock("a").acquire().release()
    pipe = onehold._server._current[None]._stdin
    number = pipe.fileno()
    # As in another thread: the object is closed before its descriptor is.
    copy = os.dup(number)
    pipe.close()
    os.dup2(copy, number, inheritable=False)
    os.close(copy)
    assert number in write_ends_of_pipes()
    try:
        assert in_child(lambda: [].index(0) if number in write_ends_of_pipes() else 0)
    finally:
        os.close(number)


def test_programs_that_are_started_in_a_block_do_not_hold_it():
    with onehold.lock("a"):
        sleeper = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        with onehold.lock("a"):
            assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()


def break_lock(program, name="a"):
    subprocess.run([program, "break", "-y", name], check=True, stderr=subprocess.DEVNULL)


def test_break_is_lost_at_the_end_of_the_block(program):
    with pytest.raises(onehold.Lost) as error:
        with onehold.lock("a") as hold:
            assert not hold.lost.is_set()
            break_lock(program)
            assert hold.lost.wait(10)
    assert (error.value.reason, error.value.number) == ("broken", hold.number)
    assert "`a`" in str(error.value)
    hold.release()


def test_loss_does_not_hide_another_exception(program):
    with pytest.raises(ZeroDivisionError):
        with onehold.lock("a"):
            break_lock(program)
            1 / 0


def test_8_threads_each_lose_their_own_hold(program):
    lost = []

    def work(name):
        try:
            with onehold.lock(name) as hold:
                break_lock(program, name)
                assert hold.lost.wait(10)
        except onehold.Lost as error:
            lost.append((name, error.number == hold.number))

    threads = [threading.Thread(target=work, args=(f"a{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(lost) == [(f"a{n}", True) for n in range(8)]


def test_on_lost_is_called_at_once_with_the_loss(program):
    called = threading.Event()
    given = []
    with pytest.raises(onehold.Lost) as error:
        with onehold.lock("a", on_lost=lambda loss: (given.append(loss), called.set())):
            break_lock(program)
            assert called.wait(10)
    assert given == [error.value]


def test_on_lost_is_not_called_by_a_release():
    given = []
    with onehold.lock("a", on_lost=given.append):
        pass
    assert given == []


def test_lost_signal_interrupts_the_main_thread(program):
    class Stop(Exception):
        pass

    def stop(number, frame):
        raise Stop

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with pytest.raises(Stop):
            with onehold.lock("a", lost_signal=signal.SIGUSR1):
                began = time.monotonic()
                break_lock(program)
                time.sleep(20)
        assert time.monotonic() - began < 5
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("number, reason", [(signal.SIGKILL, "killed"), (signal.SIGTERM, "signal")])
def test_end_of_the_process_that_holds_is_a_loss(number, reason):
    with pytest.raises(onehold.Lost) as error:
        with onehold.lock("a") as hold:
            os.kill(onehold.check("a")["pid"], number)
            assert hold.lost.wait(10)
            with onehold.lock("a", wait=10):
                pass
    assert error.value.reason == reason


def test_removed_file_is_a_loss():
    with pytest.raises(onehold.Lost) as error:
        with onehold.lock("a") as hold:
            os.remove(hold.file)
            assert hold.lost.wait(10)
    assert error.value.reason == "lost"


def on_a_terminal(code, work):
    """Runs Python as the leader of a terminal, and `work` with its descriptor. Its answer is the status."""
    child, terminal = pty.fork()
    if child == 0:
        signal.alarm(20)
        os.execv(sys.executable, [sys.executable, "-c", textwrap.dedent(code)])
    try:
        work(terminal)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        os.close(terminal)


def read_until(terminal, word):
    text = b""
    while word not in text:
        text += os.read(terminal, 1000)


def test_ctrl_c_goes_to_the_program_alone_while_it_holds():
    def work(terminal):
        read_until(terminal, b"held")
        os.write(terminal, b"\x03")

    # The handler does not end the block: the lock must still be held, and be released in order.
    assert on_a_terminal(
        """
        import signal, threading, onehold
        seen = threading.Event()
        signal.signal(signal.SIGINT, lambda *_: seen.set())
        with onehold.lock("a") as hold:
            print("held", flush=True)
            seen.wait()
            assert onehold.check("a")["hold"] == hold.number
            assert not hold.lost.wait(0.3)
        """,
        work,
    ) == 0


def test_ctrl_c_goes_to_the_program_alone_while_it_waits():
    hold = onehold.lock("a").acquire()

    def work(terminal):
        eventually(lambda: len(onehold.check("a")["waiters"]) == 1)
        os.write(terminal, b"\x03")
        read_until(terminal, b"seen")
        assert len(onehold.check("a")["waiters"]) == 1
        hold.release()

    assert on_a_terminal(
        """
        import signal, onehold
        signal.signal(signal.SIGINT, lambda *_: print("seen", flush=True))
        with onehold.lock("a", wait="forever"):
            pass
        """,
        work,
    ) == 0


def test_keyboard_interrupt_ends_a_wait_and_leaves_no_waiter(processes):
    with onehold.lock("a"):
        process = processes("""
            import onehold
            try:
                onehold.lock("a", wait="forever").acquire()
            except KeyboardInterrupt:
                print(len(onehold.check("a")["waiters"]))
        """)
        eventually(lambda: len(onehold.check("a")["waiters"]) == 1)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "0\n"
    assert process.wait() == 0


def test_async_loss_cancels_the_task(program):
    async def main():
        given = []

        async def work():
            task = asyncio.current_task()
            async with onehold.aio.lock("a", on_lost=lambda loss: (given.append(loss), task.cancel())):
                break_lock(program)
                await asyncio.sleep(20)

        with pytest.raises(asyncio.CancelledError):
            await asyncio.ensure_future(work())
        assert [loss.reason for loss in given] == ["broken"]

        with pytest.raises(onehold.Lost):
            async with onehold.aio.lock("a") as hold:
                break_lock(program)
                await asyncio.wait_for(hold.lost.wait(), 10)
        with pytest.raises(ZeroDivisionError):
            async with onehold.aio.lock("a"):
                break_lock(program)
                1 / 0

    asyncio.run(main())


def test_8_async_waits_that_are_cancelled_leave_no_waiter_and_no_hold():
    async def main():
        async with onehold.aio.lock("a"):
            tasks = [asyncio.ensure_future(onehold.aio.lock("a", wait="forever").acquire()) for _ in range(8)]
            while len(onehold.check("a")["waiters"]) < 8:
                await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(end) for end in ends] == [asyncio.CancelledError] * 8
            assert onehold.check("a")["waiters"] == []
        assert onehold.check("a")["state"] == "free"

    asyncio.run(main())


def test_end_of_a_loop_ends_8_blocks_and_frees_their_locks():
    ends = []

    async def hold(name, holds):
        try:
            async with onehold.aio.lock(name):
                holds.set()
                await asyncio.sleep(60)
        except asyncio.CancelledError:
            ends.append(onehold.check(name)["state"])
            raise

    async def main():
        events = [asyncio.Event() for _ in range(8)]
        main.tasks = [asyncio.ensure_future(hold(f"a{n}", event)) for n, event in enumerate(events)]
        await asyncio.gather(*(event.wait() for event in events))

    asyncio.run(asyncio.wait_for(main(), 20))
    assert ends == ["free"] * 8


LATE = {
    "generator": """
        import contextlib, onehold
        @contextlib.contextmanager
        def single_instance():
            with onehold.lock("a"): yield
        instance = single_instance()
        instance.__enter__()
    """,
    "__del__": """
        import onehold
        class Service:
            def __init__(self): self.hold = onehold.lock("a").acquire()
            def __del__(self): self.hold.release()
        service = Service()
    """,
}


@pytest.mark.parametrize("how", LATE)
def test_release_while_the_interpreter_ends_does_not_hang(processes, how):
    assert processes(LATE[how]).wait(20) == 0
    with onehold.lock("a", wait=10):
        pass


def test_block_that_is_entered_in_one_thread_and_left_in_another_frees_the_lock():
    def resource():
        with onehold.lock("a"):
            yield

    opened = resource()
    with ThreadPoolExecutor(1) as other:
        other.submit(next, opened).result()
    assert onehold.check("a")["state"] == "held"
    assert next(opened, "end") == "end"
    assert onehold.check("a")["state"] == "free"


def test_block_that_is_entered_in_one_task_and_left_in_another_frees_the_lock():
    async def resource():
        async with onehold.aio.lock("a"):
            yield

    async def next_of(opened):
        return [_ async for _ in opened]

    async def main():
        opened = resource()
        await asyncio.ensure_future(opened.__anext__())
        assert onehold.check("a")["state"] == "held"
        assert await asyncio.ensure_future(next_of(opened)) == []
        assert onehold.check("a")["state"] == "free"

    asyncio.run(main())


def slots_held():
    pool = onehold.check("pool")
    return 0 if pool["state"] == "free" else 1 + len(pool["others"])


def opened_in_8_threads(block):
    def resource():
        with block():
            yield

    opened = [resource() for _ in range(8)]
    threads = [threading.Thread(target=next, args=(one,)) for one in opened]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert slots_held() == 8
    return opened


def test_8_generators_that_end_in_another_thread_free_one_slot_each():
    lock = onehold.lock("pool", slots=8)
    for number, one in enumerate(opened_in_8_threads(lock.acquire)):
        assert next(one, "end") == "end"
        assert slots_held() == 7 - number


def test_block_of_another_thread_is_not_guessed():
    lock = onehold.lock("pool", slots=8)
    opened = opened_in_8_threads(lambda: lock)
    with pytest.raises(RuntimeError):
        next(opened[0], None)
    assert slots_held() == 8
    for _, hold in list(lock._holds):
        hold.release()
    for one in opened:
        with suppress(RuntimeError):
            one.close()


def test_ctrl_c_at_any_line_before_the_block_leaves_nothing_held():
    package = os.path.dirname(onehold.__file__)
    held, rounds = [], 0
    while True:
        rounds += 1
        left, line = rounds, None

        def trace(frame, event, argument):
            nonlocal left, line
            if not frame.f_code.co_filename.startswith(package):
                return None
            # There Python takes no signal, and an exception of a tracer would not leave the `with` around it.
            source = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            left -= event == "line" and not source.startswith(("with ", "try:"))
            if left == 0 and line is None:
                line = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
                raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            with onehold.lock(f"a{rounds}"):
                sys.settrace(None)
                break
        except KeyboardInterrupt:
            sys.settrace(None)
        try:
            onehold.lock(f"a{rounds}", wait=0.5).acquire().release()
        except onehold.TimedOut:
            held.append(line)
    assert held == []
    assert rounds > 30


def test_interrupted_release_can_be_repeated():
    hold = onehold.lock("a").acquire()

    def trace(frame, event, argument):
        if frame.f_code.co_name == "let_go":
            raise KeyboardInterrupt

    sys.settrace(trace)
    try:
        with pytest.raises(KeyboardInterrupt):
            hold.release()
    finally:
        sys.settrace(None)
    hold.release()
    assert onehold.check("a")["state"] == "free"


def test_fork_by_a_signal_while_the_program_is_started_copies_no_hold(monkeypatch):
    children = []

    class Popen(subprocess.Popen):
        def _execute_child(self, *arguments):
            super()._execute_child(*arguments)
            if not children:
                children.append(os.fork())
                if children[0] == 0:
                    signal.alarm(30)
                    signal.pause()

    monkeypatch.setattr(subprocess, "Popen", Popen)
    hold = onehold.lock("a").acquire()
    release = threading.Thread(target=hold.release, daemon=True)
    release.start()
    release.join(5)
    try:
        assert not release.is_alive()
        assert onehold.check("a")["state"] == "free"
    finally:
        os.kill(children[0], signal.SIGKILL)
        os.waitpid(children[0], 0)


def test_pipe_that_something_else_has_closed_is_a_loss():
    before = write_ends_of_pipes()
    with pytest.raises(onehold.Lost) as error:
        with onehold.lock("a") as hold:
            os.close(next(end for end in write_ends_of_pipes() if end not in before))
            assert hold.lost.wait(5)
    assert error.value.reason == "stdin"

    async def main():
        with pytest.raises(onehold.Lost) as error:
            async with onehold.aio.lock("a") as hold:
                os.close(next(end for end in write_ends_of_pipes() if end not in before))
                await asyncio.wait_for(hold.lost.wait(), 5)
        assert error.value.reason == "stdin"

    before = write_ends_of_pipes()
    asyncio.run(main())


def test_loss_at_the_end_of_the_block_does_not_cancel_what_follows():
    async def work():
        with pytest.raises(onehold.Lost):
            async with onehold.aio.lock("a", on_lost=asyncio.current_task().cancel):
                os.kill(onehold.check("a")["pid"], signal.SIGKILL)
        await asyncio.sleep(0.05)
        return "not cancelled"

    for _ in range(5):
        assert asyncio.run(asyncio.wait_for(work(), 20)) == "not cancelled"


def test_lost_signal_does_not_come_behind_the_block(monkeypatch):
    ends, sent = [], threading.Event()
    send = signal.pthread_kill

    def send_late(*arguments):
        time.sleep(0.1)
        send(*arguments)
        sent.set()

    monkeypatch.setattr(signal, "pthread_kill", send_late)
    before = signal.signal(signal.SIGUSR1, lambda *_: ends.append("signal"))
    try:
        with pytest.raises(onehold.Lost):
            with onehold.lock("a", lost_signal=signal.SIGUSR1) as hold:
                os.kill(onehold.check("a")["pid"], signal.SIGKILL)
                hold.lost.wait(10)
        ends.append("block")
        assert sent.wait(10)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ends == ["signal", "block"]


def test_forked_child_does_not_hold_an_async_lock():
    async def main():
        hold = await onehold.aio.lock("a").acquire()

        def work():
            assert hold.lost.is_set()
            with pytest.raises(onehold.Lost) as error:
                hold.release().send(None)
            assert error.value.reason == "forked"

        assert in_child(work)
        assert not hold.lost.is_set()
        await hold.release()

    asyncio.run(main())


def test_8_releases_at_once_all_return_when_the_lock_is_free():
    hold = onehold.lock("a").acquire()
    process = onehold.check("a")["pid"]
    # Stopped, it cannot free the lock.
    os.kill(process, signal.SIGSTOP)
    with ThreadPoolExecutor(8) as threads:
        releases = [threads.submit(hold.release) for _ in range(8)]
        try:
            assert wait(releases, timeout=0.3).done == set()
        finally:
            os.kill(process, signal.SIGCONT)
    assert [release.result() for release in releases] == [None] * 8
    assert onehold.check("a")["state"] == "free"

    async def main():
        hold = await onehold.aio.lock("a").acquire()
        process = onehold.check("a")["pid"]
        os.kill(process, signal.SIGSTOP)
        releases = [asyncio.ensure_future(hold.release()) for _ in range(8)]
        try:
            assert (await asyncio.wait(releases, timeout=0.3))[0] == set()
        finally:
            os.kill(process, signal.SIGCONT)
        await asyncio.gather(*releases)
        assert onehold.check("a")["state"] == "free"

    asyncio.run(main())

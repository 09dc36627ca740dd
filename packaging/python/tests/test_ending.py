"""How holds end: blocks, killed processes, forks, breaks, signals."""

import asyncio
import os
import pathlib
import pty
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from conftest import eventually

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
    process = processes(FORKS[how])
    child = int(process.stdout.readline())
    try:
        assert onehold.try_lock("a") is None
        killed = time.monotonic()
        process.kill()
        with onehold.lock("a", wait=10):
            assert time.monotonic() - killed < 0.3
            os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)


def test_killed_interpreter_with_8_holds_frees_all(processes):
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
        assert time.monotonic() - killed < 0.3


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

"""Programs as people write them, with one process that holds all their locks."""

import asyncio
import functools
import gc
import itertools
import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest
from conftest import eventually, quickest

import onehold
import onehold.aio


def servers_of(pid):
    children = subprocess.run(["pgrep", "-P", str(pid)], stdout=subprocess.PIPE, text=True).stdout.split()
    return [child for child in children if "--serve" in open(f"/proc/{child}/cmdline").read()]


def test_500_holds_need_one_process_and_one_thread():
    threads = len(os.listdir("/proc/self/task"))
    holds = [onehold.lock(f"a{number}").acquire() for number in range(500)]
    (server,) = servers_of(os.getpid())
    assert len(os.listdir("/proc/self/task")) <= threads + 1
    assert len(os.listdir(f"/proc/{server}/fd")) <= 520
    for hold in holds:
        hold.release()
    assert onehold.try_lock("a0") is not None


def test_few_descriptors_are_enough(processes):
    process = processes("""
        import resource, onehold
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        holds = [onehold.lock(f"a{number}").acquire() for number in range(100)]
        print(len(holds))
    """)
    assert process.stdout.readline() == "100\n"


def test_others_see_the_program_and_what_it_runs(processes, tmp_path):
    script = tmp_path / "worker.py"
    script.write_text('import onehold, sys\nwith onehold.lock("a", message="m"):\n    print(flush=True); sys.stdin.read()\n')
    process = processes("import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0])", script)
    process.stdout.readline()
    with pytest.raises(onehold.Locked) as error:
        onehold.lock("a").acquire()
    assert error.value.pid == process.pid
    assert f"is held by process {process.pid} (python" in str(error.value)
    assert ", through onehold " in str(error.value)


def test_handler_of_a_signal_takes_a_lock_while_the_main_thread_does(processes):
    process = processes("""
        import itertools, signal, time, onehold
        taken = itertools.count()
        def take(*_):
            with onehold.lock("b", wait="forever"):
                next(taken)
            # Only now, or a slow machine would nest handlers for ever.
            signal.setitimer(signal.ITIMER_REAL, 0.002)
        signal.signal(signal.SIGALRM, take)
        signal.setitimer(signal.ITIMER_REAL, 0.002)
        end = time.monotonic() + 4
        rounds = 0
        while time.monotonic() < end:
            with onehold.lock("a", wait="forever"):
                rounds += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(rounds > 50 and next(taken) > 50)
    """)
    assert process.stdout.readline() == "True\n"
    assert process.wait(20) == 0


def test_handler_of_a_signal_takes_a_lock_while_the_first_one_starts_the_server(processes):
    code = """
        import signal, sys, onehold
        def take(*_):
            with onehold.lock("b", wait="forever"):
                pass
        signal.signal(signal.SIGALRM, take)
        signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]) / 1e4)
        for number in range(20):
            with onehold.lock("a", wait="forever"):
                pass
    """
    started = [processes(code, after) for after in range(1, 41, 5)]
    assert [process.wait(20) for process in started] == [0] * 8


def test_collector_that_releases_holds_anywhere_does_not_hang(processes):
    process = processes("""
        import gc, threading, onehold
        gc.set_threshold(5)
        class Service:
            def __init__(self, name):
                self.me = self
                self.hold = onehold.lock(name, wait="forever").acquire()
            def __del__(self):
                self.hold.release()
        def work(name):
            for _ in range(100):
                Service(name)
        threads = [threading.Thread(target=work, args=(f"a{n}",)) for n in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        gc.collect()
        print("done", flush=True)
    """)
    assert process.stdout.readline() == "done\n"
    assert process.wait(20) == 0


def test_dropped_hold_is_released(program):
    onehold.lock("a").acquire()
    gc.collect()
    with onehold.lock("a", wait=10):
        pass

    async def main():
        await onehold.aio.lock("b").acquire()
        gc.collect()
        async with onehold.aio.lock("b", wait=10):
            pass

    asyncio.run(main())


def test_lock_that_is_entered_again_is_refused_at_once_and_never_hangs():
    lock = onehold.lock("a", wait="forever")
    with lock:
        began = time.monotonic()
        with pytest.raises(onehold.Locked) as error:
            with lock:
                pass
        with pytest.raises(onehold.Locked):
            onehold.lock("a", wait="forever").acquire()
        assert time.monotonic() - began < 5
        assert str(error.value).startswith("the caller itself holds it: `a` is held by ")
        # Another thread waits.
        with ThreadPoolExecutor(1) as other:
            waits = other.submit(lambda: onehold.lock("a", wait="forever").acquire().release())
            eventually(lambda: len(onehold.check("a")["waiters"]) == 1)
            own = lock._holds[-1][1]
            own.release()
            waits.result(20)

    async def main():
        lock = onehold.aio.lock("b", wait="forever")
        async with lock:
            with pytest.raises(onehold.Locked):
                async with lock:
                    pass

    asyncio.run(main())


def test_texts_and_options():
    lock = onehold.lock("a")
    assert repr(lock) == "<onehold.Lock `a`>"
    with lock as hold:
        assert repr(hold) == f"<onehold.Hold `a`, hold {hold.number}, held>"
    assert repr(hold).endswith(", released>")
    with pytest.raises(TypeError, match="use `wait`"):
        onehold.lock("a", timeout=3)
    for wait in (-1, float("nan")):
        with pytest.raises(ValueError):
            onehold.lock("a", wait=wait)
    for wait in (True, [], b"5m"):
        with pytest.raises(TypeError):
            onehold.lock("a", wait=wait)
    with pytest.raises(onehold.Error) as error:
        onehold.lock("a", wait="soon").acquire()
    assert error.value.code == "USAGE"


def test_loss_is_noted_beside_the_exception_that_it_must_not_hide(program):
    with pytest.raises(ZeroDivisionError) as error:
        with onehold.lock("a") as hold:
            subprocess.run([program, "break", "-y", "a"], check=True, stderr=subprocess.DEVNULL)
            assert hold.lost.wait(10)
            1 / 0
    assert isinstance(error.value.__context__, onehold.Lost)


def test_change_of_the_environment_is_seen(tmp_path, monkeypatch):
    first = onehold.lock("a").acquire()
    monkeypatch.setenv("ONEHOLD_DIR", str(tmp_path / "other"))
    second = onehold.lock("a").acquire()
    assert first.file != second.file == str(tmp_path / "other" / "a.lock")
    first.release()
    second.release()
    eventually(lambda: len(servers_of(os.getpid())) == 1)


def increment(path):
    with onehold.lock("counter", wait="forever"):
        path.write_text(str(int(path.read_text()) + 1))


def test_pool_of_processes_that_forks(tmp_path):
    counter = tmp_path / "counter"
    counter.write_text("0")
    # Each worker has a server of its own, whatever its parent has.
    with onehold.lock("other"), ProcessPoolExecutor(8) as pool:
        list(pool.map(increment, [counter] * 80))
    assert counter.read_text() == "80"


def test_prefork_guard_lets_one_of_8_workers_do_the_work(tmp_path):
    first = onehold.lock("before").acquire()
    children = []
    log = tmp_path / "log"
    log.write_text("")
    for _ in range(8):
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            hold = onehold.try_lock("guard")
            if hold is not None:
                with open(log, "a") as file:
                    file.write(f"{os.getpid()}\n")
                time.sleep(1)
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    assert len(log.read_text().split()) == 1
    first.release()


def test_wait_of_a_task_is_canceled_and_the_next_one_gets_the_lock():
    async def main():
        async with onehold.aio.lock("a"):
            first = asyncio.ensure_future(onehold.aio.lock("a", wait="forever").acquire())
            second = asyncio.ensure_future(onehold.aio.lock("a", wait="forever").acquire())
            while len(onehold.check("a")["waiters"]) < 2:
                await asyncio.sleep(0.01)
            first.cancel()
        hold = await asyncio.wait_for(second, 20)
        await hold.release()
        with pytest.raises(asyncio.CancelledError):
            await first

    asyncio.run(main())


def test_fixture_of_8_test_workers_makes_a_database_once(processes, tmp_path):
    code = """
        import os, pathlib, sys, onehold
        room = pathlib.Path(sys.argv[1])
        with onehold.lock("database", wait="1m"):
            if not (room / "database").exists():
                with open(room / "made", "a") as file: file.write("x")
                (room / "database").write_text("")
    """
    workers = [processes(code, tmp_path) for _ in range(8)]
    assert [worker.wait(30) for worker in workers] == [0] * 8
    assert (tmp_path / "made").read_text() == "x"


def test_lease_over_the_steps_of_a_job(processes):
    code = """
        import sys, onehold
        lease = onehold.acquire("job", ttl="1h", owner="build-7")
        print(lease.number)
    """
    numbers = [processes(code).stdout.readline() for _ in range(2)]
    assert numbers[0] == numbers[1] != ""
    assert onehold.try_lock("job") is None


def test_server_that_is_killed_loses_all_and_the_next_lock_has_another():
    lost = []
    holds = [onehold.lock(f"a{n}", on_lost=lost.append).acquire() for n in range(8)]

    def seconds():
        (server,) = servers_of(os.getpid())
        os.kill(int(server), signal.SIGKILL)
        began = time.monotonic()
        with onehold.lock(*(f"a{n}" for n in range(8)), wait=10):
            return time.monotonic() - began

    assert quickest(seconds) < 0.3
    assert all(hold.lost.wait(10) for hold in holds)
    eventually(lambda: len(lost) == 8)
    assert [loss.reason for loss in lost] == ["killed"] * 8


def test_500_in_a_row_in_8_threads(processes):
    counts = itertools.count()

    def work(number):
        for _ in range(63):
            with onehold.lock("a", wait="forever"):
                next(counts)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert next(counts) == 504
    assert len(servers_of(os.getpid())) == 1


def test_decorated_function_and_partial_in_threads():
    inside = []

    @onehold.lock("a", wait="forever")
    def work(number):
        inside.append(1)
        assert len(inside) == 1
        inside.pop()
        return number

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(functools.partial(work), range(24))) == list(range(24))


def test_death_of_the_program_at_any_moment_frees_all(processes):
    code = """
        import threading, onehold
        def work(name):
            while True:
                with onehold.lock(name, "both", wait="forever", slots=8): pass
        for number in range(8):
            threading.Thread(target=work, args=(f"a{number}",), daemon=True).start()
        print(flush=True)
        threading.Event().wait()
    """
    for delay in range(5):
        process = processes(code)
        process.stdout.readline()
        time.sleep(0.02 * delay)
        process.kill()
        with onehold.lock("both", *(f"a{n}" for n in range(8)), wait=10):
            pass
    assert threading.active_count() < 20

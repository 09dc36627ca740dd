"""Who is kept out, and who is let in: counts, overlaps and orders."""

import asyncio
import fcntl
import functools
import os
import pathlib
import queue
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import eventually, start

import onehold
import onehold.aio

# Reads and writes a number in two steps: each overlap of two holders loses an increment.
INCREMENT = """
    import pathlib, sys, onehold
    file, rounds = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    for _ in range(rounds):
        with onehold.lock("counter", wait="forever"):
            file.write_text(str(int(file.read_text()) + 1))
"""


@pytest.fixture
def counter(tmp_path):
    file = tmp_path / "counter"
    file.write_text("0")
    return file


def increment(file):
    file.write_text(str(int(file.read_text()) + 1))


def test_8_processes_with_200_increments(counter):
    workers = [start(INCREMENT, counter, 200) for _ in range(8)]
    assert [worker.wait() for worker in workers] == [0] * 8
    assert counter.read_text() == "1600"


def test_8_threads_of_one_process_share_one_lock_object(counter):
    lock = onehold.lock("counter", wait="forever")

    def work(_):
        for _ in range(50):
            with lock:
                increment(counter)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert counter.read_text() == "400"


def test_processes_and_the_command_line(counter, program):
    once = """"$0" run -w forever counter -- sh -c 'echo $(($(cat "$0") + 1)) >"$0"' "$1" || exit"""
    line = f"n=0; while [ $n -lt 50 ]; do n=$((n + 1)); {once}; done"
    workers = [start(INCREMENT, counter, 50) for _ in range(4)]
    workers += [subprocess.Popen(["sh", "-c", line, program, counter]) for _ in range(4)]
    assert [worker.wait() for worker in workers] == [0] * 8
    assert counter.read_text().strip() == "400"


def test_8_tasks_of_one_loop_share_one_lock_object(counter):
    async def main():
        lock = onehold.aio.lock("counter", wait="forever")

        async def work():
            for _ in range(25):
                async with lock:
                    number = int(counter.read_text())
                    await asyncio.sleep(0)
                    counter.write_text(str(number + 1))

        await asyncio.gather(*(work() for _ in range(8)))

    asyncio.run(main())
    assert counter.read_text() == "200"


def test_slots_let_exactly_3_of_9_in_at_once():
    together = threading.Barrier(3, timeout=20)
    guard = threading.Lock()
    inside, largest, slots = set(), [], []
    pool = onehold.lock("pool", slots=3, wait="forever")

    def work(_):
        with pool as hold:
            with guard:
                assert hold.slot not in inside
                inside.add(hold.slot)
                largest.append(len(inside))
                slots.append(hold.slot)
            # Three are in at once, or this barrier breaks; a fourth one would be seen in `inside`.
            together.wait()
            with guard:
                inside.remove(hold.slot)

    with ThreadPoolExecutor(9) as threads:
        list(threads.map(work, range(9)))
    assert max(largest) == 3
    assert sorted(set(slots)) == [0, 1, 2] and len(slots) == 9


def test_8_threads_leave_one_lock_object_in_the_order_in_which_they_came():
    lock = onehold.lock("pool", slots=8)
    leave = [threading.Event() for _ in range(8)]
    entered = queue.Queue()

    def work(number):
        with lock as hold:
            entered.put(hold.slot)
            leave[number].wait()

    # The process ends although one of them hangs.
    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(8)]
    slots = []
    for thread in threads:
        thread.start()
        slots.append(entered.get(timeout=20))
    for number, thread in enumerate(threads):
        leave[number].set()
        thread.join(20)
        # Exactly its slot is free now, and a lease takes it.
        assert onehold.acquire("pool", slots=8, ttl=60).slot == slots[number]


def test_8_tasks_leave_one_lock_object_in_the_order_in_which_they_came():
    async def main():
        lock = onehold.aio.lock("pool", slots=8)
        leave = [asyncio.Event() for _ in range(8)]
        entered = asyncio.Queue()

        async def work(number):
            async with lock as hold:
                entered.put_nowait(hold.slot)
                await leave[number].wait()

        tasks, slots = [], []
        for number in range(8):
            tasks.append(asyncio.ensure_future(work(number)))
            slots.append(await asyncio.wait_for(entered.get(), 20))
        for number, task in enumerate(tasks):
            leave[number].set()
            await task
            # Exactly its slot is free now, and a lease takes it.
            assert onehold.acquire("pool", slots=8, ttl=60).slot == slots[number]

    asyncio.run(main())


def test_8_readers_share_and_keep_a_writer_out():
    together = threading.Barrier(9, timeout=20)
    done = threading.Barrier(9, timeout=20)

    def read(_):
        with onehold.lock("data", shared=True):
            together.wait()
            done.wait()

    with ThreadPoolExecutor(8) as threads:
        readers = threads.map(read, range(8))
        together.wait()
        assert onehold.try_lock("data") is None
        done.wait()
        list(readers)
    with onehold.lock("data"):
        assert onehold.try_lock("data", shared=True) is None


def test_8_waiters_are_served_in_order_of_arrival():
    served = []

    def wait(number):
        with onehold.lock("queue", wait="forever"):
            served.append(number)

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(8)]
    with onehold.lock("queue"):
        for number, thread in enumerate(threads):
            thread.start()
            eventually(lambda: len(onehold.check("queue")["waiters"]) == number + 1)
    for thread in threads:
        thread.join()
    assert served == list(range(8))


def test_several_names_are_taken_together_or_not_at_all():
    with onehold.lock("b"):
        with pytest.raises(onehold.Locked):
            onehold.lock("a", "b").acquire()
        assert onehold.check("a")["state"] == "free"
    with onehold.lock("a", "b", slots=2) as hold:
        assert hold.slots == [0, 0]
        assert onehold.try_lock("a") is None and onehold.try_lock("b") is None


def test_parent_and_child_exclude_each_other_unless_they_have_one_owner():
    with onehold.lock("backend", owner="deploy"):
        assert onehold.try_lock("backend/task") is None
        assert onehold.try_lock("backend/task", owner="other") is None
        with onehold.lock("backend/task", owner="deploy"):
            pass


def test_path_and_directory(tmp_path):
    other = tmp_path / "other"
    with onehold.lock("a") as hold, onehold.lock("a", directory=other) as elsewhere:
        assert hold.file != elsewhere.file == str(other / "a.lock")
    path = tmp_path / "work" / "here.lock"
    with onehold.lock(path) as hold:
        assert path.exists() and hold.file == str(path)
    assert not path.exists()
    with onehold.lock("./-x.lock"), onehold.lock("-x"):
        assert onehold.check("-x")["state"] == "held"


def test_reentrant_below_the_command_line(program):
    code = 'import onehold; h = onehold.lock("a", reentrant=True).acquire(); print(h.number); h.release()'
    output = subprocess.check_output(
        [program, "run", "a", "--", "sh", "-c", 'echo "$ONEHOLD_HOLD"; exec "$@"', "sh", sys.executable, "-c", code]
    )
    outer, inner = output.split()
    assert outer == inner


def test_hold_numbers_grow():
    numbers = []
    for _ in range(8):
        with onehold.lock("a") as hold:
            numbers.append(hold.number)
    assert numbers == sorted(set(numbers))


def test_decorator():
    @onehold.lock("a", "b")
    def work(left, *, right):
        assert onehold.try_lock("a") is None and onehold.try_lock("b") is None
        return left + right

    for _ in range(2):
        assert work(1, right=2) == 3
        assert onehold.check("a")["state"] == "free"
    assert work.__name__ == "work"


def test_decorator_refuses_what_would_run_without_the_lock():
    async def coroutine():
        pass

    async def async_generator():
        yield

    def generator():
        yield

    for function in (coroutine, async_generator, generator):
        with pytest.raises(TypeError):
            onehold.lock("a")(function)
    for function in (generator, async_generator, len):
        with pytest.raises(TypeError):
            onehold.aio.lock("a")(function)


def test_decorator_does_not_run_a_coroutine_without_the_lock():
    ran = []

    async def coroutine():
        ran.append(onehold.check("a")["state"])

    for function in (lambda: coroutine(), functools.partial(lambda: coroutine())):
        with pytest.raises(TypeError):
            asyncio.run(onehold.lock("a")(function)())
    assert ran == []
    assert onehold.check("a")["state"] == "free"


def test_relative_paths_are_those_of_the_directory_in_which_they_were_given(tmp_path, monkeypatch):
    (tmp_path / "elsewhere/deep").mkdir(parents=True)
    (tmp_path / "work/link").symlink_to(tmp_path / "elsewhere/deep")
    locks = [
        onehold.lock("a", directory="store"),
        onehold.lock("./a.lock"),
        onehold.lock(pathlib.Path("b.lock")),
        # A lock of `elsewhere`, as for the command line.
        onehold.lock("./link/../c.lock"),
        onehold.lock("d", directory=pathlib.Path("link/../store")),
    ]
    leases = [onehold.acquire("e", ttl=60, directory="store"), onehold.acquire("./e.lock", ttl=60)]
    monkeypatch.chdir(tmp_path / "elsewhere")
    files = []
    for lock in locks:
        with lock as hold:
            files.append(os.path.relpath(os.path.realpath(hold.file), tmp_path))
    assert files == [
        *("work/store/a.lock", "work/a.lock", "work/b.lock", "elsewhere/c.lock", "elsewhere/store/d.lock"),
    ]
    for lease in leases:
        lease.renew()
        lease.release()


def test_async_decorator_and_try_lock():
    @onehold.aio.lock("a")
    async def work():
        assert await onehold.aio.try_lock("a") is None
        return 3

    async def main():
        assert await work() == 3
        hold = await onehold.aio.try_lock("a", message="mine")
        async with hold:
            assert onehold.check("a")["message"] == "mine"
        assert onehold.check("a")["state"] == "free"

    asyncio.run(main())


def test_format_flock_excludes_programs_that_lock_the_file_itself(tmp_path):
    path = tmp_path / "app.lock"
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(onehold.Locked) as caught:
            onehold.lock(path, format="flock").acquire()
        assert str(os.getpid()) in str(caught.value)
    with onehold.lock(path, format="flock"), open(path) as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with open(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

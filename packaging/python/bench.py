#!/usr/bin/env python3
"""Times the locks of onehold beside those of filelock, portalocker and fasteners, and prints a table.

    pip install filelock portalocker fasteners, and a wheel of onehold
    bench.py [ROUNDS]     [default: 1000]

All libraries are asked in turn, each by the object that its page shows, with the defaults of its package. The work under
a lock adds one to a number in a file. A run that has lost an increment fails.
"""

import importlib.metadata
import json
import multiprocessing
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import fasteners
import filelock
import portalocker

import onehold

WARM_UP = 50
HOLDS = 500
KILLS = 20


def locks(room):
    """A function for each library, which makes the lock of that name."""
    return {
        "onehold": lambda name: onehold.lock(name, directory=room / "store", wait="forever"),
        "filelock": lambda name: filelock.FileLock(room / f"{name}.filelock"),
        "portalocker": lambda name: portalocker.Lock(room / f"{name}.portalocker", timeout=600),
        "fasteners": lambda name: fasteners.InterProcessLock(room / f"{name}.fasteners"),
    }


LIBRARIES = list(locks(pathlib.Path()))


def add_one(counter):
    counter.write_text(str(int(counter.read_text()) + 1))


def ensure_counted(counter, expected):
    if int(counter.read_text()) != expected:
        sys.exit(f"{expected - int(counter.read_text())} increments were lost")


def milliseconds(seconds):
    return 1e3 * seconds


def free_lock(room, rounds):
    """The quartiles of taking a free lock and releasing it, without the work under it.

    All libraries in turn in each round, so that what slows the machine slows each of them.
    """
    counter = room / "counter"
    counter.write_text("0")
    new = locks(room)
    times = {name: [] for name in new}
    for number in range(WARM_UP + rounds):
        for name in new:
            began = time.perf_counter()
            with new[name]("free"):
                held = time.perf_counter()
                add_one(counter)
                done = time.perf_counter()
            if number >= WARM_UP:
                times[name].append(time.perf_counter() - done + held - began)
    ensure_counted(counter, len(new) * (WARM_UP + rounds))
    return {name: [milliseconds(value) for value in statistics.quantiles(times[name], n=4)] for name in times}


def contend(library, room, turns, pause, barrier, waits):
    """One of several processes: takes the lock that often, and tells its longest wait."""
    new = locks(room)[library]
    counter = room / "counter"
    with new(f"own-{os.getpid()}"):
        pass
    longest = 0.0
    barrier.wait()
    began = time.perf_counter()
    for _ in range(turns):
        asked = time.perf_counter()
        with new("contended"):
            longest = max(longest, time.perf_counter() - asked)
            add_one(counter)
            if pause:
                time.sleep(pause)
    waits.put((longest, began, time.perf_counter()))


def contended(library, room, processes, turns, pause):
    """The time of a turn, and the longest wait, in seconds."""
    (room / "counter").write_text("0")
    context = multiprocessing.get_context("spawn")
    barrier, waits = context.Barrier(processes), context.Queue()
    arguments = (library, room, turns, pause, barrier, waits)
    started = [context.Process(target=contend, args=arguments) for _ in range(processes)]
    for process in started:
        process.start()
    told = [waits.get(timeout=600) for _ in started]
    for process in started:
        process.join()
    ensure_counted(room / "counter", processes * turns)
    # CLOCK_MONOTONIC is the same in all processes.
    took = max(ended for _, _, ended in told) - min(began for _, began, _ in told)
    return took / (processes * turns), max(longest for longest, _, _ in told)


def of_processes(room, processes, turns, pause, repeats):
    """Medians of the time of a turn and of the longest wait; the libraries take turns."""
    results = {name: [] for name in LIBRARIES}
    for _ in range(repeats):
        for name in LIBRARIES:
            results[name].append(contended(name, room, processes, turns, pause))
    medians = {name: map(statistics.median, zip(*result)) for name, result in results.items()}
    return {name: [milliseconds(value) for value in values] for name, values in medians.items()}


def cost(pid):
    """Descriptors, and proportional memory in KiB, of a process."""
    process = pathlib.Path("/proc") / str(pid)
    memory = (process / "smaps_rollup").read_text().split("\nPss:")[1].split()[0]
    return len(os.listdir(process / "fd")), int(memory)


def children():
    return (pathlib.Path("/proc/self/task") / str(os.getpid()) / "children").read_text().split()


def hold_many(library, room):
    """In a process of its own: what many holds cost it and the processes that it has started."""
    new = locks(room)[library]
    with new("first"):
        pass
    before = cost("self")
    held = [new(f"n{number}") for number in range(HOLDS)]
    for lock in held:
        lock.__enter__()
    after = cost("self")
    others = [cost(pid) for pid in children()]
    # The server and its memory are the cost of onehold, also without a hold.
    descriptors = after[0] - before[0] + sum(number for number, _ in others)
    memory = after[1] - before[1] + sum(kib for _, kib in others)
    print(json.dumps([len(others), descriptors, memory / 1024]))
    for lock in held:
        lock.__exit__(None, None, None)


def in_another(option, library, room, **pipes):
    words = [sys.executable, __file__, option, library, str(room)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, **pipes)


def many_holds(room):
    costs = {}
    for name in LIBRARIES:
        process = in_another("--hold-many", name, room)
        costs[name] = json.loads(process.communicate()[0])
    return costs


def hold_until_killed(library, room):
    with locks(room)[library]("killed"):
        print(json.dumps([int(pid) for pid in children()]), flush=True)
        time.sleep(600)


def freed(library, room, kills_program, kills_server):
    """The time from a KILL to when this process has the lock, in seconds."""
    lock = locks(room)[library]("killed")
    process = in_another("--hold-until-killed", library, room)
    servers = json.loads(process.stdout.readline())
    began = time.perf_counter()
    for server in servers if kills_server else []:
        os.kill(server, signal.SIGKILL)
    if kills_program:
        process.kill()
    with lock:
        took = time.perf_counter() - began
    process.kill()
    process.communicate()
    return took


def killed(room, repeats):
    """The longest time until a lock is free after a KILL: of its program, of the server of that, of both."""
    times = {name: [[], [], []] for name in LIBRARIES}
    for _ in range(repeats):
        for name in LIBRARIES:
            for index, whom in enumerate([(True, False), (False, True), (True, True)]):
                if index == 0 or name == "onehold":
                    times[name][index].append(milliseconds(freed(name, room, *whom)))
    return {name: [max(values, default=None) for values in of_name] for name, of_name in times.items()}


def rows(room, rounds):
    """What is measured, and the values of each library."""
    repeats = max(1, min(3, rounds // 300))
    free = free_lock(room, rounds)
    yield "a free lock, median", {name: free[name][1] for name in free}, 3
    yield "first quartile", {name: free[name][0] for name in free}, 3
    yield "third quartile", {name: free[name][2] for name in free}, 3
    few = of_processes(room, 4, max(rounds // 10, 1), 0, repeats)
    yield "4 processes: a turn", {name: few[name][0] for name in few}, 3
    yield "4 processes: longest wait", {name: few[name][1] for name in few}, 1
    many = of_processes(room, 20, max(rounds // 50, 1), 0.01, repeats)
    yield "20 processes, work of 10 ms: a turn", {name: many[name][0] for name in many}, 3
    yield "20 processes, work of 10 ms: longest wait", {name: many[name][1] for name in many}, 1
    holds = many_holds(room)
    yield f"{HOLDS} holds: other processes", {name: holds[name][0] for name in holds}, 0
    yield f"{HOLDS} holds: descriptors", {name: holds[name][1] for name in holds}, 0
    yield f"{HOLDS} holds: memory, MiB", {name: holds[name][2] for name in holds}, 1
    ends = killed(room, min(KILLS, rounds))
    for index, whom in enumerate(["the program", "its server", "both"]):
        yield f"free after KILL of {whom}, longest", {name: ends[name][index] for name in ends}, 1


def missed(found):
    """What has to be true, and is not."""
    own = {what: values["onehold"] for what, values in found.items()}
    other = {what: values["filelock"] for what, values in found.items()}
    free, turn = "a free lock, median", "4 processes: a turn"
    longest = "20 processes, work of 10 ms: longest wait"
    musts = [
        (free, own[free], 0.3),
        (f"{free}, 0.6 of filelock", own[free], 0.6 * other[free]),
        (f"{turn}, as filelock", own[turn], other[turn]),
        (f"{longest}, 0.1 of filelock", own[longest], 0.1 * other[longest]),
        *((what, own[what], most) for what, most in zip([w for w in own if w.startswith(f"{HOLDS} ")], [1, 520, 20])),
        *((what, own[what], 300) for what in own if what.startswith("free after KILL")),
    ]
    return [f"{what}: {value:.3f}, at most {most:.3f}" for what, value, most in musts if value > most]


def main(rounds):
    version = subprocess.run([onehold.find_program(), "--version"], check=True, stdout=subprocess.PIPE, text=True)
    print(f"Python {platform.python_version()}, {version.stdout.splitlines()[0]}, {rounds} rounds, all in turn and with the defaults of their packages; in ms\n")
    names = ["onehold", *(f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES[1:])]
    print(f"| | {' | '.join(names)} |\n|---|{'--:|' * len(names)}")
    found = {}
    with tempfile.TemporaryDirectory() as directory:
        for what, values, decimals in rows(pathlib.Path(directory), rounds):
            found[what] = values
            cells = [values[name] for name in LIBRARIES]
            shown = ["" if cell is None else f"{cell:.{decimals}f}" for cell in cells]
            print(f"| {what} | {' | '.join(shown)} |", flush=True)
    for line in missed(found):
        print(f"does not hold: {line}", file=sys.stderr)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--hold-many"]:
        hold_many(sys.argv[2], pathlib.Path(sys.argv[3]))
    elif sys.argv[1:2] == ["--hold-until-killed"]:
        hold_until_killed(sys.argv[2], pathlib.Path(sys.argv[3]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)

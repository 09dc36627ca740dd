#!/usr/bin/env python3
"""Times `with` of onehold and of filelock, interleaved, and prints them as a table.

    pip install filelock, and a wheel of onehold
    bench.py [ROUNDS]     [default: 1000]

Each round takes a free lock, adds one to a number in a file, and releases the lock, once with each of them.
"""

import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

import filelock

import onehold

WARM_UP = 50


def main(rounds):
    with tempfile.TemporaryDirectory() as directory:
        room = pathlib.Path(directory)
        counter = room / "counter"
        counter.write_text("0")

        def work(lock):
            with lock:
                counter.write_text(str(int(counter.read_text()) + 1))

        subjects = {
            "`with filelock.FileLock(…)`": lambda: work(filelock.FileLock(room / "file.lock")),
            "`with onehold.lock(…)`": lambda: work(onehold.lock("job", directory=room / "store")),
            "start `true` and wait for it": lambda: subprocess.run(["true"], check=True),
        }
        times = {name: [] for name in subjects}
        for number in range(WARM_UP + rounds):
            for name, subject in subjects.items():
                began = time.perf_counter()
                subject()
                if number >= WARM_UP:
                    times[name].append(time.perf_counter() - began)
        assert counter.read_text() == str(2 * (WARM_UP + rounds))

    print(f"Python {platform.python_version()}, filelock {filelock.__version__}, {rounds} rounds\n")
    print("| | first quartile | median | third quartile |\n|---|--:|--:|--:|")
    for name, values in times.items():
        quartiles = statistics.quantiles(values, n=4)
        print(f"| {name} | {' | '.join(f'{1e3 * value:.3f} ms' for value in quartiles)} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)

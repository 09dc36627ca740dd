"""Inside programs that run the code of others: pytest-xdist, a kernel of Jupyter, a server that forks workers."""

import signal
import subprocess
import sys

import pytest
from conftest import eventually

import onehold


def test_workers_of_pytest_xdist_make_a_fixture_once(tmp_path):
    (tmp_path / "conftest.py").write_text("""if True:
        import pathlib, pytest, onehold

        @pytest.fixture(scope="session")
        def database(tmp_path_factory):
            room = tmp_path_factory.getbasetemp().parent
            with onehold.lock("database", directory=room / "locks", wait="1m"):
                if not (room / "database").exists():
                    with open(room / "made", "a") as file:
                        file.write("x")
                    (room / "database").touch()
            return room / "database"
    """)
    (tmp_path / "test_it.py").write_text("""if True:
        import pytest, onehold

        @pytest.mark.parametrize("number", range(16))
        def test_one(database, number):
            assert database.exists()
            # Each worker has a server of its own.
            with onehold.lock("counter", wait="1m"):
                path = database.parent / "counter"
                path.write_text(str(int(path.read_text() or 0) + 1) if path.exists() else "1")
    """)
    base = tmp_path / "base"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "8", "-p", "no:cacheprovider", "--basetemp", base]
    result = subprocess.run([*command, tmp_path], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert ((base / "made").read_text(), (base / "counter").read_text()) == ("x", "16")


class Kernel:
    def __init__(self):
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(kernel_name="python3")

    def run(self, code):
        """What a cell prints; its exception, if it ends with one."""
        printed = []

        def hear(message):
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                printed.append(content["text"])
            elif kind == "error":
                printed.append(content["ename"])

        self.client.execute_interactive(code, timeout=60, output_hook=hear)
        return "".join(printed)

    def end(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    started = Kernel()
    yield started
    started.end()


def test_cells_of_a_kernel_hold_locks_and_an_interrupt_ends_a_wait(kernel):
    # The loop of the kernel runs while a cell does.
    assert kernel.run("import onehold, onehold.aio; hold = onehold.lock('a').acquire(); print(hold.number > 0)") == "True\n"
    assert onehold.check("a")["state"] == "held"
    cell = """
async with onehold.aio.lock('b', wait=10) as other:
    with onehold.lock('c', wait=10):
        print(onehold.check('b')['state'], onehold.check('c')['state'])
"""
    assert kernel.run(cell) == "held held\n"
    again = "async with onehold.aio.lock('d', wait='forever'):\n    async with onehold.aio.lock('d', wait='forever'): pass"
    assert kernel.run(again) == "Locked"
    assert kernel.run("hold.release(); print(onehold.check('a')['state'])") == "free\n"

    with onehold.lock("a"):
        waits = kernel.client.execute("onehold.lock('a', wait='forever').acquire()")
        eventually(lambda: len(onehold.check("a")["waiters"]) == 1)
        kernel.manager.interrupt_kernel()
        reply = kernel.client.get_shell_msg(timeout=60)
        while reply["parent_header"].get("msg_id") != waits:
            reply = kernel.client.get_shell_msg(timeout=60)
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        assert onehold.check("a")["waiters"] == []
    # It is usable as before, and its death frees what it holds.
    kernel.run("hold = onehold.lock('a').acquire()")
    kernel.manager.signal_kernel(signal.SIGKILL)
    with onehold.lock("a", wait=10):
        pass


def test_loop_inside_a_loop_takes_locks(processes):
    process = processes("""
        import asyncio, onehold, onehold.aio, threading
        async def inner():
            async with onehold.aio.lock("b", wait=10) as hold:
                return hold.number
        async def outer():
            async with onehold.aio.lock("a", wait=10) as hold:
                # As a notebook does it without a patched loop: a loop of its own in a thread.
                number = await asyncio.to_thread(asyncio.run, inner())
                return hold.number < number and onehold.check("a")["state"] == "held"
        print(asyncio.run(outer()))
    """)
    assert process.stdout.readline() == "True\n"


def test_workers_that_a_master_forks_again_and_again_hold_what_they_take(processes, tmp_path):
    counter = tmp_path / "counter"
    counter.write_text("0")
    code = """
        import os, sys, onehold
        master = onehold.lock("master").acquire()
        def work(number):
            assert master.lost.is_set()
            for _ in range(5):
                with onehold.lock("counter", wait="1m"):
                    path = sys.argv[1]
                    value = int(open(path).read())
                    with open(path, "w") as file: file.write(str(value + 1))
            os._exit(0)
        workers = {}
        for number in range(8):
            pid = os.fork()
            if pid == 0: work(number)
            workers[pid] = number
        # Each is started again once, as gunicorn does it after a worker has died.
        again = list(workers.values())
        while workers:
            pid, status = os.wait()
            assert status == 0
            del workers[pid]
            if again:
                number = again.pop()
                pid = os.fork()
                if pid == 0: work(number)
                workers[pid] = number
        assert not master.lost.is_set()
        master.release()
        print("done", flush=True)
    """
    assert processes(code, counter).stdout.readline() == "done\n"
    assert counter.read_text() == "80"

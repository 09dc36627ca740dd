import faulthandler
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import textwrap
import time

import pytest

import onehold

TESTS = pathlib.Path(__file__).parent

# Python takes no KeyboardInterrupt, and its children none either, if this one was started in the background of a
# script, which ignores the signal.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def limit():
    """A test that hangs ends the run, and says where each thread was."""
    faulthandler.dump_traceback_later(float(os.environ.get("LIMIT", 120)), exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session", autouse=True)
def program():
    """The program of the wheel that this Python has installed, and no other one."""
    program = os.path.join(sysconfig.get_path("scripts"), "onehold")
    assert onehold.find_program() == program, "install the wheel first: tests/run"
    return program


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    """A store, a home directory and a working directory of each test."""
    for variable in [name for name in os.environ if name.startswith(("ONEHOLD_", "ETCDCTL_", "CLAWDBOT_"))]:
        monkeypatch.delenv(variable)
    for name in ("home", "work", "store"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("ONEHOLD_DIR", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path / "work")
    yield tmp_path / "store"
    # The next test begins without a server.
    for server in list(onehold._server._current.values()):
        server.retire()
    onehold._server._current.clear()


def quickest(seconds_of_a_round, limit=0.3):
    """The shortest of up to five rounds, each in seconds: a busy machine delays any single one."""
    best = float("inf")
    for _ in range(5):
        best = min(best, seconds_of_a_round())
        if best < limit:
            break
    return best


def eventually(condition, seconds=10):
    """Waits until the condition is true, and says so; a test fails if it does not become true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        answer = condition()
        if answer:
            return answer
        time.sleep(0.005)
    raise AssertionError(f"not true after {seconds} s")


def start(code, *arguments, **options):
    """A Python process with a pipe to its stdout and one to its stdin."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)


@pytest.fixture
def processes():
    """`processes(code, arguments...)` starts a Python process that does not outlive the test."""
    started = []

    def start_one(code, *arguments, **options):
        started.append(start(code, *arguments, **options))
        return started[-1]

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def etcd(tmp_path_factory):
    """A member of etcd on loopback; its URL, without a prefix."""
    if shutil.which("etcd") is None:
        pytest.fail("etcd is missing: sudo apt-get install etcd-server")
    member = Etcd(tmp_path_factory.mktemp("etcd"))
    yield member
    member.end()


class Etcd:
    def __init__(self, directory):
        ports = []
        for _ in range(2):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                ports.append(free.getsockname()[1])
        client, peer = (f"http://127.0.0.1:{port}" for port in ports)
        self.url = f"etcd://127.0.0.1:{ports[0]}"
        self.log = open(directory / "log", "w")
        self.process = subprocess.Popen(
            [
                *("etcd", "--data-dir", str(directory / "data"), "--unsafe-no-fsync"),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", f"default={peer}"),
            ],
            stdout=self.log,
            stderr=self.log,
        )

        def answers():
            assert self.process.poll() is None, (directory / "log").read_text()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", ports[0])) == 0

        eventually(answers)

    def end(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.log.close()

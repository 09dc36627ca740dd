"""KILL of the program, of its server, and of both, at each line of what they say to each other."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import eventually, quickest

import onehold

# Each is a line to the server, and most wait for its answer.
STEPS = [
    'held = onehold.lock("x").acquire()',
    'both = onehold.lock("y", "z", owner="o").acquire()',
    'waits = threading.Thread(target=try_, args=(lambda: onehold.lock("other", wait="1h").acquire(),), daemon=True); waits.start()',
    'leases = threading.Thread(target=try_, args=(lambda: onehold.acquire("other", ttl="1h", wait="1h"),), daemon=True); leases.start()',
    'onehold.check("x")',
    'held.release()',
    'held = onehold.lock("x", slots=2).acquire()',
    'both.release()',
]
PROGRAM = """
import threading, time, onehold
def try_(take):
    try:
        take()
    except onehold.Error:
        pass
{steps}
print(onehold._server._current[None].process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("whom", ["program", "server", "both"])
@pytest.mark.parametrize("until", range(1, len(STEPS) + 1))
def test_all_is_free_within_300_ms(processes, whom, until):
    waiters = sum("wait=" in step for step in STEPS[:until])

    def seconds():
        with onehold.lock("other"):
            process = processes(PROGRAM.format(steps="\n".join(STEPS[:until])))
            server = int(process.stdout.readline())
            eventually(lambda: len(onehold.check("other")["waiters"]) == waiters)
            began = time.monotonic()
            if whom != "program":
                os.kill(server, signal.SIGKILL)
            if whom != "server":
                process.kill()
            with onehold.lock("x", "y", "z", wait=10):
                took = time.monotonic() - began
            process.kill()
            process.wait()
            eventually(lambda: onehold.check("other")["waiters"] == [])
        return took

    assert quickest(seconds) < 0.3
    # Nobody has it: a wait that was killed takes nothing later.
    assert [onehold.check(name)["state"] for name in ("x", "y", "z", "other")] == ["free"] * 4


def test_lease_that_was_acquired_stays_when_its_program_and_server_are_killed(processes):
    process = processes("""
        import onehold, time
        lease = onehold.acquire("a", ttl="1h")
        print(lease.number, onehold._server._current[None].process.pid, flush=True)
        time.sleep(600)
    """)
    number, server = map(int, process.stdout.readline().split())
    os.kill(server, signal.SIGKILL)
    process.kill()
    process.wait()
    held = onehold.check("a")
    assert (held["state"], held["kind"], held["hold"]) == ("held", "lease", number)


def test_lease_is_renewed_and_released_by_another_server_after_a_kill():
    lease = onehold.acquire("a", ttl="1h")
    for act in (lease.renew, lambda: onehold.check("a"), lease.release):
        os.kill(onehold._server._current[None].process.pid, signal.SIGKILL)
        eventually(lambda: not onehold._server._current)
        act()
    assert onehold.check("a")["state"] == "free"


def test_release_of_a_lease_that_a_killed_server_has_not_answered_can_be_repeated():
    lease = onehold.acquire("a", ttl="1h")
    server = onehold._server._current[None].process.pid
    os.kill(server, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as other:
        released = other.submit(lease.release)
        eventually(lambda: onehold._server._current[None]._waiting)
        os.kill(server, signal.SIGKILL)
        with pytest.raises(onehold.Error, match="without an answer"):
            released.result(20)
    lease.release()
    lease.release()
    assert onehold.check("a")["state"] == "free"


def test_keyboard_interrupt_ends_a_wait_for_a_lease_and_leaves_nothing(processes):
    with onehold.lock("a"):
        process = processes("""
            import onehold
            try:
                onehold.acquire("a", ttl="1h", wait="1h")
            except KeyboardInterrupt:
                print(onehold.check("a")["waiters"], flush=True)
        """)
        eventually(lambda: len(onehold.check("a")["waiters"]) == 1)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "[]\n"
    assert onehold.check("a")["state"] == "free"


def test_interrupted_extension_leaves_the_lease_that_was_held_before(monkeypatch):
    lease = onehold.acquire("a", ttl="1h", owner="o")
    answer = onehold._server.Claim.answer

    def interrupted(claim):
        answer(claim)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(onehold._server.Claim, "answer", interrupted)
        for name in "ab":
            with pytest.raises(KeyboardInterrupt):
                onehold.acquire(name, ttl="1h", owner="o")
    assert onehold.check("a")["hold"] == lease.number
    assert onehold.check("b")["state"] == "free"


def test_lease_that_is_released_while_an_answer_is_read_does_not_hang(processes):
    process = processes("""
        import types, onehold, onehold._server as server
        leases = [onehold.acquire("-a", ttl="1h")]
        loads = server.json.loads
        def loads_and_collects(line):
            while leases:
                leases.pop().release()
            return loads(line)
        server.json = types.SimpleNamespace(loads=loads_and_collects)
        with onehold.lock("b"):
            print(onehold.check("-a")["state"], flush=True)
    """)
    assert process.stdout.readline() == "free\n"


def test_lease_that_the_thread_waits_for_while_it_holds_the_lock_is_refused_at_once():
    with onehold.lock("a"):
        with pytest.raises(onehold.Locked, match="^the caller itself holds it"):
            onehold.acquire("a", ttl="1h", wait="forever")
    assert repr(onehold.acquire("a", ttl="1h")).startswith("<onehold.Lease `a`, hold ")

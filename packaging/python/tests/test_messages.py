"""What the program prints: messages of a later version, and what is no message."""

import asyncio
import threading

import pytest

import onehold
import onehold.aio

HELD = '{"id":1,"event":"held","hold":7,"slot":null,"slots":[],"file":"/x","displaced":null,"reason":null,"message":null}'
NEW = '{"id":1,"event":"queued","hold":7,"reason":null,"message":null}'
RELEASED = '{"id":1,"event":"released","hold":7,"reason":"request","message":null}'


@pytest.fixture
def fake(tmp_path):
    """A program that runs these lines of sh."""

    def write(*lines):
        path = tmp_path / "fake"
        path.write_text("#!/bin/sh\n" + "\n".join(lines) + "\n")
        path.chmod(0o755)
        return path

    return write


def say(line):
    return f"echo '{line}'"


def within(seconds, work):
    """The result of the function, in a thread that may hang."""
    results = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert results, f"it hangs for {seconds} s"
    return results[0]


def sync_acquire(program):
    return within(10, lambda: error_of(lambda: onehold.lock("a", program=program).acquire()))


def aio_acquire(program):
    async def main():
        return await asyncio.wait_for(onehold.aio.lock("a", program=program).acquire(), 5)

    return within(10, lambda: error_of(lambda: asyncio.run(main())))


def error_of(work):
    try:
        return work()
    except Exception as error:
        return error


@pytest.mark.parametrize("acquire", [sync_acquire, aio_acquire])
def test_unknown_message_does_not_hold(fake, acquire):
    error = acquire(fake(say(NEW), "exit 3"))
    assert type(error) is onehold.Error and "exited with 3 without an answer" in str(error)


@pytest.mark.parametrize("acquire", [sync_acquire, aio_acquire])
@pytest.mark.parametrize("lines", [["exec yes"], [say("3"), "exec cat"], [say("{}"), "trap '' TERM; exec sleep 60"]])
def test_program_that_is_no_onehold_is_ended(fake, acquire, lines):
    error = acquire(fake(*lines))
    assert type(error) is onehold.Error and "without an answer" in str(error)


AFTER = [
    ([say(NEW), "read -r request", say(RELEASED), "cat"], None),
    ([say(NEW), "exit 1"], "killed"),
    ([say("garbage"), "exec cat"], "killed"),
    ([say("garbage"), "exec yes"], "killed"),
]


@pytest.mark.parametrize("lines, reason", AFTER)
def test_messages_while_it_is_held(fake, lines, reason):
    hold = onehold.lock("a", program=fake("read -r request", say(HELD), "sleep 0.1", *lines)).acquire()
    assert hold.lost.wait(0.5 if reason is None else 10) is (reason is not None)
    assert getattr(within(10, lambda: error_of(hold.release)), "reason", None) == reason


@pytest.mark.parametrize("lines, reason", AFTER)
def test_messages_while_it_is_held_by_a_task(fake, lines, reason):
    async def main():
        hold = await onehold.aio.lock("a", program=fake("read -r request", say(HELD), "sleep 0.1", *lines)).acquire()
        if reason is None:
            await asyncio.sleep(0.5)
            assert not hold.lost.is_set()
            await asyncio.wait_for(hold.release(), 10)
            return
        await asyncio.wait_for(hold.lost.wait(), 10)
        with pytest.raises(onehold.Lost) as error:
            await asyncio.wait_for(hold.release(), 10)
        assert error.value.reason == reason

    error = within(20, lambda: error_of(lambda: asyncio.run(main())))
    assert error is None, error

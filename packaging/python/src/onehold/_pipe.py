"""The process that holds a lock, and the pipe that keeps it held."""

from __future__ import annotations

import io
import json
import os
import subprocess
import threading
from contextlib import suppress
from typing import Callable, Iterator, List, Optional, Set, cast

from onehold._program import not_started
from onehold.errors import Answer

# Held while a process is started, and by a fork: a child never starts with a descriptor that is not in the set.
# It is reentrant, because the handler of a signal may fork.
_guard = threading.RLock()
_started: Set[Holder] = set()


class Holder:
    """A process `onehold hold`. From `start` on it holds the lock until `let_go`, or until this process ends."""

    def __init__(self, command: List[str]) -> None:
        self._command = command
        self.after_fork: Optional[Callable[[], None]] = None
        self.process: Optional[subprocess.Popen[bytes]] = None
        self._kept_open: Optional[io.FileIO] = None
        self._rest = b""

    def start(self) -> None:
        with _guard:
            stdin, kept_open = os.pipe()
            # Not its number: a second `close` does nothing, so a signal may interrupt the first one anywhere.
            self._kept_open = io.FileIO(kept_open, "w")
            # Before the process is started, when the handler of a signal may fork.
            _started.add(self)
            try:
                # A session of its own: the terminal signals this process alone, which then decides.
                self.process = subprocess.Popen(
                    self._command, stdin=stdin, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
                )
            except OSError as error:
                raise not_started(self._command[0], error) from error
            finally:
                os.close(stdin)

    @property
    def stdout(self) -> io.FileIO:
        return cast("io.FileIO", cast("subprocess.Popen[bytes]", self.process).stdout)

    def messages(self, part: bytes) -> List[Optional[Answer]]:
        """The messages that end in `part`, without those that only a later version knows. `None`: no more will come."""
        *lines, self._rest = (self._rest + part).split(b"\n")
        try:
            found = [cast("Answer", json.loads(line)) for line in lines]
            known: List[Optional[Answer]] = []
            known += [event for event in found if event["event"] in ("held", "failed", "lost", "released")]
        except (ValueError, TypeError, KeyError):
            # It is no onehold. It may print for ever and ignore that its stdin ends.
            cast("subprocess.Popen[bytes]", self.process).kill()
            return [None]
        return known if part else [None]

    def read(self) -> Iterator[Optional[Answer]]:
        while True:
            try:
                # Not a buffered reader: its own lock could be taken by another thread at a fork.
                part = self.stdout.read(65536)
            except (OSError, ValueError):
                part = b""
            yield from self.messages(part)

    def let_go(self) -> None:
        # The program may have closed all of its descriptors.
        with _guard, suppress(OSError):
            if self._kept_open is not None:
                self._kept_open.close()
        _started.discard(self)

    def wait(self) -> int:
        """Lets go, and waits until the process has exited. Its answer is the exit status."""
        self.let_go()
        return cast("subprocess.Popen[bytes]", self.process).wait()

    def end(self) -> int:
        """As `wait`, and closes its stdout."""
        status = self.wait()
        with suppress(OSError):
            self.stdout.close()
        return status

    def close_in_child(self) -> None:
        self.let_go()
        if self.process is not None:
            # It is no child of this process, so nothing here can wait for it.
            self.process.returncode = 0
        if self.after_fork is not None:
            self.after_fork()


def _in_child() -> None:
    # With a copy of the pipe, the child would keep the lock of its parent held.
    holders = list(_started)
    _started.clear()
    _guard.release()
    for holder in holders:
        holder.close_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_in_child)

"""The process that holds a lock, and the pipe that keeps it held."""

from __future__ import annotations

import io
import os
import subprocess
import threading
from typing import Callable, List, Optional, Set, cast

from onehold._program import not_started

# Held while a process is started, and by a fork: a child never starts with a descriptor that is not in the set.
# It is reentrant, because the handler of a signal may fork.
_guard = threading.RLock()
_started: Set[Holder] = set()


class Holder:
    """A process `onehold hold`. It holds the lock until `let_go`, or until this process ends."""

    def __init__(self, command: List[str]) -> None:
        self.forked = False
        self.after_fork: Optional[Callable[[], None]] = None
        with _guard:
            stdin, self._kept_open = os.pipe()
            try:
                # A session of its own: the terminal signals this process alone, which then decides.
                self.process = subprocess.Popen(
                    command, stdin=stdin, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
                )
            except BaseException as error:
                os.close(self._kept_open)
                if isinstance(error, OSError):
                    raise not_started(command[0], error) from error
                raise
            finally:
                os.close(stdin)
            _started.add(self)
        self.stdout = cast("io.FileIO", self.process.stdout)

    def let_go(self) -> None:
        with _guard:
            if self in _started:
                _started.remove(self)
                os.close(self._kept_open)

    def close_in_child(self) -> None:
        os.close(self._kept_open)
        self.forked = True
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

"""The process that holds the locks of this interpreter, and what it says."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import _thread
import io
import itertools
import json
import os
import subprocess
import threading
from contextlib import suppress
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple, cast

from onehold._options import Name
from onehold._program import find_program, not_started
from onehold.errors import Answer

Receive = Callable[[Optional[Answer]], None]

# Held while a process is started, and by a fork: a child never starts with a descriptor that is not in the set, and
# never keeps a start from ending. It is reentrant, because the handler of a signal may fork or take a lock. The thread
# that reads the answers never takes it.
_guard = threading.RLock()
_pipes: Set[Pipe] = set()
_servers: Set[Server] = set()
_current: Dict[Optional[str], Server] = {}
_numbers = itertools.count(1)
_local = threading.local()

# Atomic for a pipe, so that the requests of several threads are not mixed (pipe(7)).
PIPE_BUF = 4096


class Pipe(io.FileIO):
    """The end of a pipe that keeps a server alive."""

    number = -1
    inode = 0

    def is_open(self) -> bool:
        """Whether the number is still that of the pipe, whatever this object says."""
        with suppress(OSError):
            return os.fstat(self.number).st_ino == self.inode
        return False


# Their numbers belong to something else by now.
_gone: List[Pipe] = []


def _close(pipe: Pipe) -> None:
    if not pipe.closed and not pipe.is_open():
        # The program has closed all of its descriptors.
        _gone.append(pipe)
    if pipe not in _gone:
        with suppress(OSError):
            pipe.close()
    _pipes.discard(pipe)


def caller_of_thread() -> int:
    """A number of this thread that no other one ever has."""
    number: Optional[int] = getattr(_local, "number", None)
    if number is None:
        number = _local.number = next(_numbers)
    return number


def is_reader() -> bool:
    """Whether this thread reads the answers of a server, so that it must not wait for one: the collector runs anywhere."""
    return getattr(_local, "is_reader", False)


def new_caller() -> int:
    return next(_numbers)


class Server:
    """A process `onehold hold --serve`. Its answers are read by a thread, which calls `receive` of each request."""

    def __init__(self, program: Optional[Name], identity: Tuple[Any, ...]) -> None:
        self.identity = identity
        self.status = 0
        self.has_answered = False
        self._ids = itertools.count(1)
        self._waiting: Dict[int, Receive] = {}
        self._after_fork: Dict[int, Callable[[], None]] = {}
        self._has_ended = False
        self._is_retired = False
        self._is_closed = False
        self.reader: Optional[int] = None
        path = find_program(program)
        with _guard:
            stdin, kept_open = os.pipe()
            # Not its number: a second `close` does nothing, so a signal may interrupt the first one anywhere.
            self._stdin = Pipe(kept_open, "w")
            self._stdin.number, self._stdin.inode = kept_open, os.fstat(kept_open).st_ino
            # Before the process is started, when the handler of a signal may fork.
            _pipes.add(self._stdin)
            try:
                # A session of its own: the terminal signals this process alone, which then decides.
                self.process = subprocess.Popen(
                    [path, "hold", "--serve", f"--die-with={os.getpid()}"],
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    bufsize=0,
                    start_new_session=True,
                )
            except OSError as error:
                self._close()
                raise not_started(path, error) from error
            finally:
                os.close(stdin)
        _servers.add(self)
        # Not `threading.Thread`: the handler of a signal may come while that has the lock of all threads.
        _thread.start_new_thread(self._read, ())

    def next_number(self) -> int:
        return next(self._ids)

    def ask(self, number: int, tail: bytes, receive: Receive, after_fork: Callable[[], None]) -> bool:
        """Sends a request: what follows its number. `receive` is called with each answer, and with `None` at the end.

        `False`: it has been retired meanwhile.
        """
        self._after_fork[number] = after_fork
        self._waiting[number] = receive
        # Whoever retires it looks at `_waiting` afterwards.
        if self._is_closed and not self._has_ended:
            self._forget(number)
            return False
        self._send(b'{"id":%d,%b}\n' % (number, tail))
        if self._has_ended and self._waiting.pop(number, None) is not None:
            receive(None)
        return True

    def has_to_answer(self, number: int) -> bool:
        return number in self._waiting

    def release(self, number: int) -> None:
        """Asks for the end of a hold or of a wait."""
        self._send(b'{"id":%d,"command":"release"}\n' % number)

    def _send(self, line: bytes) -> None:
        # The reader tells that it has ended. And the program may have closed all of its descriptors.
        with suppress(OSError, ValueError):
            os.write(self._stdin.fileno(), line)

    def retire(self) -> None:
        """Ends once nothing is held by it."""
        self._is_retired = True
        if not self._waiting:
            self._close()

    def _close(self) -> None:
        self._is_closed = True
        _close(self._stdin)

    def _answers(self) -> Iterator[Answer]:
        stdout = cast("io.FileIO", self.process.stdout)
        rest = b""
        while True:
            try:
                part = os.read(stdout.fileno(), 65536)
            except (OSError, ValueError):
                part = b""
            if not part:
                return
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                yield cast("Answer", json.loads(line))

    def _read(self) -> None:
        self.reader = _thread.get_ident()
        _local.is_reader = True
        try:
            for answer in self._answers():
                self._tell(answer["event"], answer)
        except (ValueError, TypeError, KeyError):
            # It is no onehold. It may print for ever and ignore that its stdin ends.
            self.process.kill()
        self._has_ended = True
        for program, server in list(_current.items()):
            if server is self:
                _current.pop(program, None)
        self._close()
        self.status = self.process.wait()
        with suppress(OSError):
            cast("io.FileIO", self.process.stdout).close()
        _servers.discard(self)
        for number in list(self._waiting):
            receive = self._waiting.pop(number, None)
            self._forget(number)
            if receive is not None:
                receive(None)

    def _tell(self, event: str, answer: Answer) -> None:
        if event not in ("held", "failed", "lost", "released", "result"):
            # Of a later version, or of no importance.
            return
        receive = self._waiting.get(answer["id"])
        self.has_answered = True
        if receive is None:
            return
        if event != "held":
            self._forget(answer["id"])
        receive(answer)
        if self._is_retired and not self._waiting:
            self._close()

    def _forget(self, number: int) -> None:
        self._waiting.pop(number, None)
        self._after_fork.pop(number, None)

    def close_in_child(self) -> None:
        self._close()
        self._has_ended = True
        # It is no child of this process, so nothing here can wait for it.
        self.process.returncode = 0
        with suppress(OSError):
            cast("io.FileIO", self.process.stdout).close()
        for after_fork in list(self._after_fork.values()):
            after_fork()


def _identity() -> Tuple[Any, ...]:
    """What a process inherits when it is started, and `onehold` looks at."""
    # The dictionary behind `os.environ`: its values need not be decoded to be compared.
    environment = cast("Any", os.environ)._data
    return (os.geteuid(), os.getegid(), environment)


def server(program: Optional[Name], length: int) -> Server:
    """The server of this interpreter, for a request of that length."""
    name = None if program is None else os.fspath(program)
    identity = _identity()
    found = _current.get(name)
    if length > PIPE_BUF:
        alone = Server(program, ())
        alone._is_retired = True
        return alone
    if found is not None and found.identity == identity:
        return found
    # The dictionary changes with the environment.
    new = Server(program, (*identity[:2], dict(identity[2])))
    if found is not None and _current.get(name) is found:
        _current.pop(name, None)
        found.retire()
    # Another thread, or the handler of a signal, may have started one meanwhile.
    kept = _current.setdefault(name, new)
    if kept is not new and kept.identity == new.identity:
        new.retire()
        return kept
    if new._has_ended:
        _current.pop(name, None)
    return new


def _in_child() -> None:
    # With a copy of the pipe, the child would be told nothing of the end of its parent.
    servers = list(_servers)
    pipes = list(_pipes)
    _servers.clear()
    _pipes.clear()
    _current.clear()
    _guard.release()
    for one in servers:
        one.close_in_child()
    for pipe in pipes:
        _close(pipe)
        # A thread of the parent was about to close it: the object says that it is closed, and it was not yet.
        if pipe.is_open():
            os.close(pipe.number)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_in_child)


class Claim:
    """A request for locks, from the beginning of the wait to the end of the hold. It blocks the threads that wait."""

    def __init__(self, program: Optional[Name], tail: bytes) -> None:
        self.program = program
        self.tail = tail
        self.server: Optional[Server] = None
        self._number = 0
        self.first: Optional[Answer] = None
        self.last: Optional[Answer] = None
        self.is_held = False
        self.has_ended = False
        # Locked until it has been answered, and until it has ended.
        self._answered = _thread.allocate_lock()
        self._ended = _thread.allocate_lock()
        self._answered.acquire()
        self._ended.acquire()
        self.on_end: Optional[Callable[[], None]] = None
        self.has_let_go = False
        self.is_forked = False

    def ask(self, caller: int) -> None:
        tail = b'"caller":%d,%b' % (caller, self.tail)
        while True:
            self.server = server(self.program, len(tail) + 40)
            self._number = self.server.next_number()
            if self.server.ask(self._number, tail, self._receive, self._not_held_in_child):
                return

    def answer(self) -> Optional[Answer]:
        """Waits for the answer. `None`: there is none."""
        self._answered.acquire()
        self._answered.release()
        return self.first

    def was_too_late(self) -> bool:
        """Whether the server was about to end, or was killed, before it answered: another one is to be asked."""
        ended = self.server is not None and self.server.has_answered
        return ended and self.first is None and not self.is_forked and not self.has_let_go

    def _receive(self, answer: Optional[Answer]) -> None:
        if answer is not None and answer["event"] == "held":
            self.first, self.is_held = answer, True
            self._answered.release()
            return
        self._end(answer)

    def _end(self, answer: Optional[Answer]) -> None:
        if self.has_ended:
            return
        self.last = answer
        self.has_ended = True
        if not self.is_held:
            self.first = answer
            self._answered.release()
        try:
            if self.on_end is not None:
                self.on_end()
        finally:
            self._ended.release()

    def let_go(self) -> None:
        """Asks for the end. A second call does nothing."""
        if self.server is not None and not self.has_let_go and not self.has_ended:
            self.server.release(self._number)
        self.has_let_go = True

    def wait_for_end(self) -> None:
        # The collector may release a hold in the thread that reads the answers.
        if self.is_asked() and self.server is not None and self.server.reader != _thread.get_ident():
            with self._ended:
                pass

    def is_asked(self) -> bool:
        """Whether its end has still to be told. Not if Ctrl-C came before the request."""
        if self.server is None or self.is_forked:
            return False
        return self.server.has_to_answer(self._number) or self.first is not None

    def _not_held_in_child(self) -> None:
        # New ones: a thread of the parent may have the old ones.
        self._answered, self._ended = _thread.allocate_lock(), _thread.allocate_lock()
        self.is_forked, self.has_ended = True, True
        if self.on_end is not None:
            self.on_end()

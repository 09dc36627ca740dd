"""The process that holds the locks of this interpreter, and what it says."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import _thread
import io
import itertools
import json
import os
import select
import subprocess
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any, Callable, Deque, Dict, List, Optional, Set, Tuple, cast

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

# How long a thread that waits for an answer reads it itself, in milliseconds.
READS_FOR = 50

# For how long it looks again and again before it sleeps, in seconds, if answers come as soon: to be woken takes about as
# much of the processor, and as long again as the answer.
LOOKS_FOR = 0.0002
HAS_PROCESSORS = (os.cpu_count() or 1) > 1


class Pipe(io.FileIO):
    """The end of a pipe that keeps a server alive."""

    inode = 0


# Their numbers belong to something else by now.
_gone: List[Pipe] = []


def _close(pipe: Pipe) -> None:
    with suppress(OSError, ValueError):
        if os.fstat(pipe.fileno()).st_ino != pipe.inode:
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


def new_caller() -> int:
    return next(_numbers)


class Server:
    """A process `onehold hold --serve`. Its answers are read by a thread, which calls `receive` of each request.

    A thread that waits for an answer reads it itself, unless another one reads: no other thread has to be woken then.
    """

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
        # Who reads: a list with the number of its thread.
        self._reading: Dict[int, List[int]] = {}
        # What was read and not told, and of that the lines.
        self._parts: Deque[bytes] = deque()
        self._lines: Deque[bytes] = deque()
        self._rest = b""
        # Whether the last answer came as soon.
        self._is_quick = HAS_PROCESSORS
        path = find_program(program)
        with _guard:
            stdin, kept_open = os.pipe()
            # Not its number: a second `close` does nothing, so a signal may interrupt the first one anywhere.
            self._stdin = Pipe(kept_open, "w")
            self._stdin.inode = os.fstat(kept_open).st_ino
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
        self._stdout = cast("io.FileIO", self.process.stdout)
        self._watch: Any = None
        if hasattr(select, "epoll"):
            os.set_blocking(self._stdout.fileno(), False)
            # What wakes the thread: an answer while nobody else reads, or, of a pipe that is always writable, what
            # another one has read and not told.
            self._watch = select.epoll()
            self._watch.register(self._stdout.fileno(), select.EPOLLIN)
            self._watch.register(self._stdin.fileno(), 0)
        _servers.add(self)
        # Not `threading.Thread`: the handler of a signal may come while that has the lock of all threads.
        _thread.start_new_thread(self._read, ())

    def next_number(self) -> int:
        return next(self._ids)

    def ask(
        self,
        number: int,
        tail: bytes,
        receive: Receive,
        after_fork: Callable[[], None],
        is_over: Optional[Callable[[], bool]],
    ) -> bool:
        """Sends a request: what follows its number. `receive` is called with each answer, and with `None` at the end.

        `is_over`: this thread waits until that is true. `False`: it has been retired meanwhile.
        """
        self._after_fork[number] = after_fork
        self._waiting[number] = receive
        # Whoever retires it looks at `_waiting` afterwards.
        if self._is_closed and not self._has_ended:
            self._forget(number)
            return False
        self._send(number, b'{"id":%d,%b}\n' % (number, tail), is_over)
        if self._has_ended and self._waiting.pop(number, None) is not None:
            receive(None)
        return True

    def has_to_answer(self, number: int) -> bool:
        return number in self._waiting

    def release(self, number: int, is_over: Optional[Callable[[], bool]]) -> None:
        """Asks for the end of a hold or of a wait. `is_over`: this thread waits until that is true."""
        self._send(number, b'{"id":%d,"command":"release"}\n' % number, is_over)

    def _send(self, number: int, line: bytes, is_over: Optional[Callable[[], bool]]) -> None:
        if is_over is not None and self._watch is not None:
            self._send_and_read(number, line, is_over)
        else:
            self._write(line)

    def _write(self, line: bytes) -> None:
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

    def _read_part(self) -> None:
        # One call: the handler of a signal comes before or after, and what was read is not lost.
        with suppress(BlockingIOError):
            self._parts.extend(map(os.read, (self._stdout.fileno(),), (65536,)))

    def _send_and_read(self, number: int, line: bytes, is_over: Callable[[], bool]) -> None:
        """Reads the answers in the thread that waits for one, for a short time. Then the other thread does."""
        own = [_thread.get_ident()]
        try:
            # In the handler of a signal, the code that it has interrupted may be reading.
            if self._reading.setdefault(0, own)[0] == own[0]:
                self._reading[0] = own
                with suppress(OSError, ValueError):
                    self._watch.modify(self._stdout.fileno(), 0)
            self._write(line)
            if self._reading.get(0) is own:
                self._read_own(number, own, is_over)
            self._let_read(own)
        except BaseException:
            # Not `finally`: Ctrl-C may come in the midst of it.
            self._let_read(own)
            raise

    def _read_own(self, number: int, own: List[int], is_over: Callable[[], bool]) -> None:
        # If the program has closed its descriptors, the other thread tells that.
        with suppress(OSError, ValueError):
            ready = select.poll()
            ready.register(self._stdout.fileno(), select.POLLIN)
            begins = b'{"id":%d,' % number
            until = time.perf_counter() + LOOKS_FOR
            while self._is_quick and not ready.poll(0) and time.perf_counter() < until:
                # The server may need this processor.
                os.sched_yield()
            while not is_over() and self._reading.get(0) is own and ready.poll(READS_FOR):
                self._is_quick = HAS_PROCESSORS and time.perf_counter() < until
                self._read_part()
                if not self._tell_own(begins):
                    break

    def _let_read(self, own: List[int]) -> None:
        """Lets the other thread read."""
        if self._reading.get(0) is own:
            with suppress(OSError, ValueError):
                self._watch.modify(self._stdout.fileno(), select.EPOLLIN)
                if self._parts:
                    self._watch.modify(self._stdin.fileno(), select.EPOLLOUT)
            self._reading.pop(0, None)

    def _tell_own(self, begins: bytes) -> bool:
        """Tells the answer that has come, if there is no other one. The others are for the other thread to tell."""
        if len(self._parts) != 1 or self._rest or self._lines:
            return not self._parts
        part = self._parts[0]
        if not part.startswith(begins) or part.find(b"\n") != len(part) - 1:
            return False
        answer = cast("Answer", json.loads(part))
        event = answer["event"]
        try:
            self._parts.remove(part)
            self._tell(event, answer)
        except BaseException:
            # Ctrl-C, perhaps in the midst of it.
            if part not in self._parts:
                self._tell(event, answer)
            raise
        return True

    def _await_part(self) -> bytes:
        """What comes next; empty at the end."""
        since: Tuple[Any, float] = (None, 0.0)
        while not self._parts:
            if self._watch is None:
                self._read_part()
                continue
            own = [_thread.get_ident()]
            for number, _ in self._watch.poll():
                if number != self._stdout.fileno():
                    # It may have been closed meanwhile.
                    with suppress(OSError):
                        self._watch.modify(number, 0)
            reads = self._reading.setdefault(0, own)
            if reads is own:
                try:
                    self._read_part()
                finally:
                    if self._reading.get(0) is own:
                        self._reading.pop(0, None)
            elif not self._parts:
                # It is about to read, or was ended by an exception.
                if since[0] is not reads:
                    since = (reads, time.monotonic())
                elif time.monotonic() - since[1] > READS_FOR / 500:
                    self._reading.pop(0, None)
                time.sleep(0.001)
        return self._parts.popleft()

    def _read(self) -> None:
        own = self.reader = _thread.get_ident()
        _local.reads = self
        try:
            while self.reader == own:
                if self._lines:
                    answer = cast("Answer", json.loads(self._lines.popleft()))
                    self._tell(answer["event"], answer)
                    continue
                part = self._await_part()
                if not part:
                    break
                *lines, self._rest = (self._rest + part).split(b"\n")
                self._lines.extend(lines)
            else:
                return
        except (OSError, ValueError, TypeError, KeyError) as error:
            if not isinstance(error, OSError):
                # It is no onehold. It may print for ever and ignore that its stdin ends.
                self.process.kill()
        self._has_ended = True
        for program, server in list(_current.items()):
            if server is self:
                _current.pop(program, None)
        self._close()
        self.status = self.process.wait()
        self._close_answers()
        _servers.discard(self)
        for number in list(self._waiting):
            receive = self._waiting.pop(number, None)
            self._forget(number)
            if receive is not None:
                receive(None)

    def _close_answers(self) -> None:
        with suppress(OSError):
            self._stdout.close()
        if self._watch is not None:
            with suppress(OSError):
                self._watch.close()

    def _tell(self, event: str, answer: Answer) -> None:
        if event not in ("held", "failed", "lost", "released", "result"):
            # Of a later version, or of no importance.
            return
        receive = self._waiting.get(answer["id"])
        self.has_answered = True
        if receive is None:
            return
        receive(answer)
        if event != "held":
            self._forget(answer["id"])
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
        self._close_answers()
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


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_in_child)


def _let_another_read() -> None:
    """Called before a thread waits. The collector may call a `__del__` in one that reads, which takes a lock."""
    reads: Optional[Server] = getattr(_local, "reads", None)
    if reads is not None:
        _local.reads = None
        _thread.start_new_thread(reads._read, ())


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

    def ask(self, caller: int, waits: bool = False) -> None:
        """Asks for the locks. `waits`: this thread then waits for the answer."""
        tail = b'"caller":%d,%b' % (caller, self.tail)
        is_over = (lambda: self.is_held or self.has_ended) if waits else None
        if waits:
            _let_another_read()
        while True:
            self.server = server(self.program, len(tail) + 40)
            self._number = self.server.next_number()
            if self.server.ask(self._number, tail, self._receive, self._not_held_in_child, is_over):
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
        if answer is None or answer["event"] != "held":
            self._end(answer)
        elif not self.is_held:
            self.first, self.is_held = answer, True
            self._answered.release()

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

    def let_go(self, waits: bool = False) -> None:
        """Asks for the end. A second call does nothing. `waits`: this thread then waits for it."""
        if self.server is not None and not self.has_let_go and not self.has_ended:
            if waits:
                _let_another_read()
            self.server.release(self._number, (lambda: self.has_ended) if waits else None)
        self.has_let_go = True

    def wait_for_end(self) -> None:
        if self.is_asked():
            _let_another_read()
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

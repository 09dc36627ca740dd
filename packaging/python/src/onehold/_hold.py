"""Locks that are held as long as a block, a function or this process runs."""

from __future__ import annotations

import functools
import inspect
import io
import json
import signal
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Iterator, List, Optional, Tuple, Type, TypeVar, cast

from onehold._options import Duration, Name, Options, display, words
from onehold._pipe import Holder
from onehold._program import find_program
from onehold.errors import Answer, Error, Locked, Lost, failure

if TYPE_CHECKING:
    # Type checkers have it built in, and nothing needs it when the program runs.
    from typing_extensions import Unpack

Function = TypeVar("Function", bound=Callable[..., Any])
OnLost = Callable[[Lost], object]


def loss(event: Optional[Answer], names: Tuple[Name, ...], number: int) -> Optional[Lost]:
    """Why a hold has ended, from its last event; `None` if we have ended it ourselves."""
    if event is None:
        text = f"lost lock {display(names)}: the process that held it was killed"
        return Lost(text, {"hold": number, "reason": "killed"})
    if event["event"] == "released" and event["reason"] == "stdin":
        return None
    text = f"lost lock {display(names)}: the process that held it has ended by itself"
    return Lost(event["message"] or text, event)


def forked(names: Tuple[Name, ...], number: int) -> Lost:
    text = f"lost lock {display(names)}: the process that forked this one holds it"
    return Lost(text, {"hold": number, "reason": "forked"})


def no_answer(names: Tuple[Name, ...], status: int) -> Error:
    return Error(f"cannot hold {display(names)}: onehold has ended with {status} and without an answer")


def _events(stdout: io.FileIO) -> Iterator[Answer]:
    # Not a buffered reader: its own lock could be taken by another thread at a fork.
    rest = b""
    while True:
        part = stdout.read(65536)
        if not part:
            return
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield json.loads(line)


class Hold:
    """A lock that is held. `lost` is set at once when it no longer is; `release` then raises `Lost`."""

    number: int
    """Hold number. It only grows, so a storage can refuse an earlier holder."""
    slot: Optional[int]
    """Number of the slot, 0 and up, if the lock is shared or has slots."""
    slots: List[int]
    """Number of the slot in each lock, if there are several."""
    file: Optional[str]
    """Path of the lock file; `None` on etcd."""
    displaced: Optional[Answer]
    """The dead holder that the lock was taken over from."""
    lost: threading.Event

    def __init__(
        self,
        command: List[str],
        names: Tuple[Name, ...],
        on_lost: Optional[OnLost],
        lost_signal: Optional[int],
    ) -> None:
        self.names = names
        self.lost = threading.Event()
        self._on_lost = on_lost
        self._lost_signal = lost_signal
        self._released = False
        self._loss: Optional[Lost] = None
        self._ended = threading.Event()
        self._holder = Holder(command)
        self._messages = _events(self._holder.stdout)
        try:
            held = self._wait()
            self.number = held["hold"]
            self.slot = held["slot"]
            self.slots = held["slots"]
            self.file = held["file"]
            self.displaced = held["displaced"]
            self._holder.after_fork = self._not_held_in_child
            self._watching = threading.Thread(target=self._watch, name="onehold", daemon=True)
            self._watching.start()
        except BaseException:
            self._holder.let_go()
            self._holder.process.wait()
            self._holder.stdout.close()
            raise

    def _wait(self) -> Answer:
        for event in self._messages:
            if event["event"] == "held":
                return event
            if event["event"] == "failed":
                raise failure(event)
        raise no_answer(self.names, self._holder.process.wait())

    def _watch(self) -> None:
        self._loss = loss(next(self._messages, None), self.names, self.number)
        if self._loss is not None:
            self.lost.set()
        self._ended.set()
        try:
            if self._loss is not None and self._lost_signal is not None:
                # To the main thread, whose sleep or read it then interrupts.
                signal.pthread_kill(cast("int", threading.main_thread().ident), self._lost_signal)
            if self._loss is not None and self._on_lost is not None:
                self._on_lost(self._loss)
        finally:
            self._holder.process.wait()
            self._holder.stdout.close()

    def _not_held_in_child(self) -> None:
        # New ones: a thread of the parent may have the locks of the old ones.
        self.lost = threading.Event()
        self.lost.set()
        self._ended = threading.Event()
        self._ended.set()
        self._loss = forked(self.names, self.number)

    def release(self) -> None:
        """Releases the lock, and returns when it is free. A second call does nothing."""
        if self._released:
            return
        self._released = True
        self._holder.let_go()
        self._ended.wait()
        if self._loss is not None:
            # Without its process: where etcd does not answer, that needs some seconds to exit.
            raise self._loss
        self._watching.join()

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        try:
            self.release()
        except Lost:
            if kind is None:
                raise


class _HoldsOfThread(threading.local):
    def __init__(self) -> None:
        self.stack: List[Hold] = []


class Lock:
    """A lock to take: by `with`, by `acquire`, or as a decorator. Any number of threads may use one at once."""

    def __init__(
        self,
        line: List[str],
        names: Tuple[Name, ...],
        program: Optional[Name],
        on_lost: Optional[OnLost],
        lost_signal: Optional[int],
    ) -> None:
        self._line = line
        self._names = names
        self._program = program
        self._on_lost = on_lost
        self._lost_signal = lost_signal
        self._holds = _HoldsOfThread()

    def acquire(self) -> Hold:
        """Takes the lock until `release` of what it returns, or the end of this process."""
        command = [find_program(self._program), *self._line]
        return Hold(command, self._names, self._on_lost, self._lost_signal)

    def __enter__(self) -> Hold:
        hold = self.acquire()
        self._holds.stack.append(hold)
        return hold

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self._holds.stack.pop().__exit__(kind, error, traceback)

    def __call__(self, function: Function) -> Function:
        """Decorates a function: each call of it holds the lock."""
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"decorate `{function.__name__}`: use `onehold.aio.lock` for what is async")
        if inspect.isgeneratorfunction(function):
            raise TypeError(f"decorate `{function.__name__}`: a generator would run without the lock")

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            with self:
                return function(*arguments, **named)

        return cast("Function", call)


def lock(
    *names: Name,
    wait: Optional[Duration] = None,
    ttl: Optional[Duration] = None,
    reentrant: bool = False,
    on_lost: Optional[OnLost] = None,
    lost_signal: Optional[int] = None,
    program: Optional[Name] = None,
    **options: Unpack[Options],
) -> Lock:
    """A lock of one name, or of several that are taken together. `with`, a decorator or `acquire` takes it.

    `wait` may be `"forever"`. Without it the configuration of onehold decides; its default is not to wait.
    `Locked` is raised if the lock is held, and `TimedOut` after a wait. If the lock is lost inside the block,
    at once the event `lost` is set, this process gets `lost_signal`, and `on_lost` is called in another thread.
    `Lost` is raised at the end of the block, unless another exception is under way.
    """
    line = words("hold", names, wait=wait, ttl=ttl, reentrant=reentrant, **options)
    return Lock(line, names, program, on_lost, lost_signal)


def try_lock(
    *names: Name,
    ttl: Optional[Duration] = None,
    reentrant: bool = False,
    on_lost: Optional[OnLost] = None,
    lost_signal: Optional[int] = None,
    program: Optional[Name] = None,
    **options: Unpack[Options],
) -> Optional[Hold]:
    """Takes a lock without waiting, or returns `None` if it is held. Use what it returns as `with hold:`."""
    line = words("hold", names, no_wait=True, ttl=ttl, reentrant=reentrant, **options)
    try:
        return Lock(line, names, program, on_lost, lost_signal).acquire()
    except Locked:
        return None

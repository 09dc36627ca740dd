"""Locks that are held as long as a block, a function or this process runs."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import functools
import inspect
import signal
import sys
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any, Callable, List, Optional, Tuple, Type, TypeVar, cast

from onehold._options import Duration, Name, Options, Unpack, display, words
from onehold._pipe import Holder
from onehold._program import find_program
from onehold.errors import Answer, Error, Locked, Lost, failure

Function = TypeVar("Function", bound=Callable[..., Any])
OnLost = Callable[[Lost], object]
AnyHold = TypeVar("AnyHold")


def loss(event: Optional[Answer], names: Tuple[Name, ...], number: int, released: bool) -> Optional[Lost]:
    """Why a hold has ended, from its last event; `None` if we have ended it ourselves."""
    if event is None:
        text = f"lost lock {display(names)}: the process that held it was killed"
        return Lost(text, {"hold": number, "reason": "killed"})
    if event["event"] == "released" and event["reason"] == "stdin":
        text = f"lost lock {display(names)}: this program has closed the pipe that kept it held"
        return None if released else Lost(text, event)
    text = f"lost lock {display(names)}: the process that held it has ended by itself"
    return Lost(event["message"] or text, event)


def forked(names: Tuple[Name, ...], number: int) -> Lost:
    text = f"lost lock {display(names)}: the process that forked this one holds it"
    return Lost(text, {"hold": number, "reason": "forked"})


def not_held(event: Optional[Answer], names: Tuple[Name, ...], status: int) -> Error:
    if event is not None and event["event"] == "failed":
        return failure(event)
    return Error(f"cannot hold {display(names)}: onehold exited with {status} without an answer")


def own_hold(holds: List[Tuple[object, AnyHold]], caller: object) -> AnyHold:
    """Takes the newest hold of a thread or task out of the list; that of another one only if there is no choice."""
    entries = list(holds)
    found = [entry for entry in entries if entry[0] is caller] or entries
    if not found or (found is entries and len(found) > 1):
        raise RuntimeError(
            "release: the block was entered in another thread or task, which cannot be told from others; "
            "use `lock.acquire()` for each block"
        )
    holds.remove(found[-1])
    return found[-1][1]


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
        self._messages = self._holder.read()
        self._watching = threading.Thread(target=self._watch, name="onehold", daemon=True)

    def _take(self) -> None:
        try:
            self._holder.start()
            held = next(self._messages)
            if held is None or held["event"] != "held":
                raise not_held(held, self.names, self._holder.end())
            self.number = held["hold"]
            self.slot = held["slot"]
            self.slots = held["slots"]
            self.file = held["file"]
            self.displaced = held["displaced"]
            self._holder.after_fork = self._not_held_in_child
            self._watching.start()
        except BaseException:
            self._holder.let_go()
            if self._holder.process is not None:
                self._holder.end()
            raise

    def _watch(self) -> None:
        lost = loss(next(self._messages), self.names, self.number, self._released)
        try:
            if lost is not None:
                self._loss = lost
                self.lost.set()
            told = lost is not None and not self._released
            if told and self._lost_signal is not None:
                # To the main thread, whose sleep or read it then interrupts. Not behind the block: `release` waits.
                signal.pthread_kill(cast("int", threading.main_thread().ident), self._lost_signal)
            self._ended.set()
            if told and self._on_lost is not None:
                self._on_lost(cast("Lost", lost))
        finally:
            self._ended.set()
            self._holder.end()

    def _not_held_in_child(self) -> None:
        # New ones: a thread of the parent may have the locks of the old ones.
        self.lost = threading.Event()
        self.lost.set()
        self._ended = threading.Event()
        self._ended.set()
        self._loss = forked(self.names, self.number)

    def release(self) -> None:
        """Releases the lock, and returns when it is free. A second call raises nothing."""
        self._released = True
        self._holder.let_go()
        if sys.is_finalizing():
            # The thread no longer runs. The process frees the lock all the same.
            return
        self._ended.wait()
        lost, self._loss = self._loss, None
        if lost is not None:
            raise lost
        if not self.lost.is_set():
            # Not after a loss: where etcd does not answer, the process needs some seconds to exit.
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
        finally:
            # Once more: Ctrl-C may have interrupted `release`.
            self._holder.let_go()


class Lock:
    """A lock to take: by `with`, by `acquire`, or as a decorator. Any number of threads may use one at once.

    In a generator, use `with lock.acquire()`: it may end in another thread.
    """

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
        self._holds: List[Tuple[object, Hold]] = []

    def _new(self) -> Hold:
        command = [find_program(self._program), *self._line]
        return Hold(command, self._names, self._on_lost, self._lost_signal)

    def acquire(self) -> Hold:
        """Takes the lock until `release` of what it returns, or the end of this process."""
        hold = self._new()
        hold._take()
        return hold

    def __enter__(self) -> Hold:
        entry = (threading.current_thread(), self._new())
        try:
            entry[1]._take()
            self._holds.append(entry)
            return entry[1]
        except BaseException:
            entry[1]._holder.let_go()
            with suppress(ValueError):
                self._holds.remove(entry)
            raise

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        own_hold(self._holds, threading.current_thread()).__exit__(kind, error, traceback)

    def __call__(self, function: Function) -> Function:
        """Decorates a function: each call of it holds the lock."""
        name = getattr(function, "__name__", function)
        is_async = f"decorate `{name}`: use `onehold.aio.lock` for what is async"
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(is_async)
        if inspect.isgeneratorfunction(function):
            raise TypeError(f"decorate `{name}`: a generator would run without the lock")

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            with self.acquire():
                answer = function(*arguments, **named)
                if inspect.iscoroutine(answer):
                    answer.close()
                if inspect.isawaitable(answer):
                    raise TypeError(is_async)
                return answer

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

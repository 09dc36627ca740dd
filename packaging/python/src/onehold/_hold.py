"""Locks that are held as long as a block, a function or this process runs."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import _thread
import functools
import inspect
import signal
import sys
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any, Callable, List, Optional, Tuple, Type, TypeVar, cast

from onehold._options import Duration, Name, Options, Unpack, display, request
from onehold._server import Claim, caller_of_thread
from onehold.errors import Answer, Error, Locked, Lost, attach, failure

Function = TypeVar("Function", bound=Callable[..., Any])
OnLost = Callable[[Lost], object]
AnyHold = TypeVar("AnyHold")


def loss(claim: Claim, names: Tuple[Name, ...], number: int, released: bool) -> Optional[Lost]:
    """Why a hold has ended; `None` if we have ended it ourselves."""
    event = claim.last
    if claim.is_forked:
        text = f"lost lock {display(names)}: the process that forked this one holds it"
        return Lost(text, {"hold": number, "reason": "forked"})
    if event is None:
        text = f"lost lock {display(names)}: the process that held it was killed"
        return Lost(text, {"hold": number, "reason": "killed"})
    if event["event"] == "failed" or (event["event"] == "released" and event["reason"] == "request"):
        return None
    if event["event"] == "released" and event["reason"] == "stdin":
        text = f"lost lock {display(names)}: this program has closed the pipe that kept it held"
        return None if released else Lost(text, event)
    text = f"lost lock {display(names)}: the process that held it has ended by itself"
    return Lost(event["message"] or text, event)


def not_held(claim: Claim, names: Tuple[Name, ...]) -> Error:
    event = claim.first
    if event is not None and event["event"] == "failed":
        return failure(event)
    status = claim.server.status if claim.server is not None else 0
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
    """A lock that is held. `lost` is set at once when it no longer is; `release` then raises `Lost`.

    It is released when it is dropped, too.
    """

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

    def __init__(
        self,
        claim: Claim,
        names: Tuple[Name, ...],
        on_lost: Optional[OnLost],
        lost_signal: Optional[int],
    ) -> None:
        self.names = names
        self._on_lost = on_lost
        self._lost_signal = lost_signal
        self._begin(claim)

    def _begin(self, claim: Claim) -> None:
        self._claim = claim
        self._state = _State(claim, self.names, self._on_lost, self._lost_signal)
        claim.on_end = self._state.end

    @property
    def lost(self) -> threading.Event:
        """Set when the lock is no longer held against our will."""
        return self._state.lost

    def __repr__(self) -> str:
        state = "lost" if self.lost.is_set() else "released" if self._claim.has_let_go else "held"
        return f"<onehold.Hold {display(self.names)}, hold {getattr(self, 'number', None)}, {state}>"

    def _take(self) -> None:
        try:
            self._claim.ask(caller_of_thread())
            held = self._claim.answer()
            while self._claim.was_too_late():
                self._begin(Claim(self._claim.program, self._claim.tail))
                self._claim.ask(caller_of_thread())
                held = self._claim.answer()
            if held is None or not self._claim.is_held:
                raise not_held(self._claim, self.names)
            self.number = self._state.number = held["hold"]
            self.slot = held["slot"]
            self.slots = held["slots"]
            self.file = held["file"]
            self.displaced = held["displaced"]
        except BaseException:
            self._let_go()
            self._claim.wait_for_end()
            raise

    def _let_go(self) -> None:
        self._state.is_released = True
        self._claim.let_go()

    def release(self) -> None:
        """Releases the lock, and returns when it is free. A second call raises nothing."""
        self._let_go()
        if sys.is_finalizing():
            # The thread no longer runs. The process frees the lock all the same.
            return
        self._claim.wait_for_end()
        lost, self._state.loss = self._state.loss, None
        if lost is not None:
            raise lost

    def __del__(self) -> None:
        # Its answer is not waited for: this may be any thread, with any lock.
        with suppress(AttributeError):
            self._let_go()

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
        except Lost as lost:
            if error is None:
                raise
            attach(error, lost)
        finally:
            # Once more: Ctrl-C may have interrupted `release`.
            self._let_go()


class _State:
    """What a hold needs when it ends. The thread that reads the answers knows this, and not the hold itself, which may
    be dropped."""

    def __init__(
        self,
        claim: Claim,
        names: Tuple[Name, ...],
        on_lost: Optional[OnLost],
        lost_signal: Optional[int],
    ) -> None:
        self.number = 0
        self.is_released = False
        self.loss: Optional[Lost] = None
        self._claim = claim
        self._names = names
        self.lost = threading.Event()
        self._on_lost = on_lost
        self._lost_signal = lost_signal

    def end(self) -> None:
        if not self._claim.is_held or self.loss is not None:
            return
        first = self._claim.first
        number = self.number or (first or {})["hold"]
        lost = self.loss = loss(self._claim, self._names, number, self.is_released)
        if lost is None:
            return
        if self._claim.is_forked:
            # A thread of the parent may have the lock of the old one.
            self.lost = threading.Event()
        self.lost.set()
        if self.is_released or self._claim.is_forked:
            return
        if self._lost_signal is not None:
            # To the main thread, whose sleep or read it then interrupts. Not behind the block: `release` waits.
            signal.pthread_kill(cast("int", threading.main_thread().ident), self._lost_signal)
        if self._on_lost is not None:
            # In a thread of its own: it may take a lock.
            _thread.start_new_thread(self._on_lost, (lost,))


class Lock:
    """A lock to take: by `with`, by `acquire`, or as a decorator. Any number of threads may use one at once.

    In a generator, use `with lock.acquire()`: it may end in another thread.
    """

    def __init__(
        self,
        request: bytes,
        names: Tuple[Name, ...],
        program: Optional[Name],
        on_lost: Optional[OnLost],
        lost_signal: Optional[int],
    ) -> None:
        self._request = request
        self._names = names
        self._program = program
        self._on_lost = on_lost
        self._lost_signal = lost_signal
        self._holds: List[Tuple[object, Hold]] = []

    def _new(self) -> Hold:
        claim = Claim(self._program, self._request)
        return Hold(claim, self._names, self._on_lost, self._lost_signal)

    def __repr__(self) -> str:
        return f"<onehold.Lock {display(self._names)}>"

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
            entry[1]._let_go()
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
    asked = request(names, wait=wait, ttl=ttl, reentrant=reentrant, **options)
    return Lock(asked, names, program, on_lost, lost_signal)


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
    asked = request(names, no_wait=True, ttl=ttl, reentrant=reentrant, **options)
    try:
        return Lock(asked, names, program, on_lost, lost_signal).acquire()
    except Locked:
        return None

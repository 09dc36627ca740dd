"""The same locks for asyncio: `async with onehold.aio.lock("backup", wait="5m") as hold`."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import functools
import inspect
from contextlib import suppress
from types import TracebackType
from typing import Any, Awaitable, Callable, List, Optional, Tuple, Type, TypeVar, cast
from weakref import WeakKeyDictionary

from onehold._hold import OnLost, loss, not_held, own_hold
from onehold._options import Duration, Name, Options, Unpack, display, request
from onehold._server import Claim, new_caller
from onehold.errors import Answer, Locked, Lost, attach

__all__ = ["Hold", "Lock", "lock", "try_lock"]

Function = TypeVar("Function", bound=Callable[..., Awaitable[Any]])


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
    lost: asyncio.Event

    def __init__(
        self, program: Optional[Name], request: bytes, names: Tuple[Name, ...], on_lost: Optional[OnLost]
    ) -> None:
        self.names = names
        self.lost = asyncio.Event()
        self._on_lost = on_lost
        self._begin(program, request)

    def _begin(self, program: Optional[Name], request: bytes) -> None:
        self._claim = _Claim(program, request, asyncio.get_running_loop())
        self._state = _State(self._claim, self.names, self.lost, self._on_lost)
        self._claim.in_loop = self._state.hear

    def __repr__(self) -> str:
        state = "lost" if self.lost.is_set() else "released" if self._claim.has_let_go else "held"
        return f"<onehold.aio.Hold {display(self.names)}, hold {getattr(self, 'number', None)}, {state}>"

    async def _take(self) -> None:
        try:
            self._claim.ask(_caller_of_task())
            await self._state.answered.wait()
            while self._claim.was_too_late():
                self._begin(self._claim.program, self._claim.tail)
                self._claim.ask(_caller_of_task())
                await self._state.answered.wait()
            held = self._claim.first
            if held is None or not self._claim.is_held:
                raise not_held(self._claim, self.names)
            self.number = held["hold"]
            self.slot = held["slot"]
            self.slots = held["slots"]
            self.file = held["file"]
            self.displaced = held["displaced"]
        except BaseException:
            self._let_go()
            if self._claim.is_asked():
                await self._state.ended.wait()
            raise

    def _let_go(self) -> None:
        self._state.is_released = True
        self._claim.let_go()

    async def release(self) -> None:
        """Releases the lock, and returns when it is free. A second call raises nothing."""
        self._let_go()
        if self._claim.is_forked:
            self._state.hear()
        await self._state.ended.wait()
        lost, self._state.loss = self._state.loss, None
        if lost is not None:
            raise lost

    def __del__(self) -> None:
        with suppress(AttributeError):
            self._let_go()

    async def __aenter__(self) -> Hold:
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        try:
            await self.release()
        except Lost as lost:
            if error is None:
                raise
            attach(error, lost)


class _Claim(Claim):
    """A request whose answers are heard in a loop."""

    def __init__(self, program: Optional[Name], tail: bytes, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(program, tail)
        self._loop = loop
        self.in_loop: Callable[[], None]

    def _receive(self, answer: Optional[Answer]) -> None:
        super()._receive(answer)
        # The loop may have been closed.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.in_loop)

    def _not_held_in_child(self) -> None:
        super()._not_held_in_child()
        self.in_loop()


class _State:
    """What a hold needs when it ends. The loop knows this, and not the hold itself, which may be dropped."""

    def __init__(
        self, claim: Claim, names: Tuple[Name, ...], lost: asyncio.Event, on_lost: Optional[OnLost]
    ) -> None:
        self.answered = asyncio.Event()
        self.ended = asyncio.Event()
        self.is_released = False
        self.loss: Optional[Lost] = None
        self._claim = claim
        self._names = names
        self._lost = lost
        self._on_lost = on_lost

    def hear(self) -> None:
        self.answered.set()
        if not self._claim.has_ended or self.ended.is_set():
            return
        first = self._claim.first
        if self._claim.is_held and first is not None:
            self.loss = loss(self._claim, self._names, first["hold"], self.is_released)
        if self.loss is not None:
            self._lost.set()
            # Not behind the block: it may be `task.cancel`.
            if self._on_lost is not None and not self.is_released and not self._claim.is_forked:
                self._on_lost(self.loss)
        self.ended.set()


_callers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def _caller_of_task() -> int:
    """A number of this task that no other one ever has."""
    task = asyncio.current_task()
    if task is None:
        return new_caller()
    return _callers.setdefault(task, new_caller())


class Lock:
    """A lock to take: by `async with`, by `acquire`, or as a decorator. Any number of tasks may use one at once.

    In a generator, use `async with await lock.acquire()`: it may end in another task.
    """

    def __init__(
        self, request: bytes, names: Tuple[Name, ...], program: Optional[Name], on_lost: Optional[OnLost]
    ) -> None:
        self._request = request
        self._names = names
        self._program = program
        self._on_lost = on_lost
        self._holds: List[Tuple[object, Hold]] = []

    def __repr__(self) -> str:
        return f"<onehold.aio.Lock {display(self._names)}>"

    async def acquire(self) -> Hold:
        """Takes the lock until `release` of what it returns, or the end of this process."""
        hold = Hold(self._program, self._request, self._names, self._on_lost)
        await hold._take()
        return hold

    async def __aenter__(self) -> Hold:
        hold = await self.acquire()
        self._holds.append((asyncio.current_task(), hold))
        return hold

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        await own_hold(self._holds, asyncio.current_task()).__aexit__(kind, error, traceback)

    def __call__(self, function: Function) -> Function:
        """Decorates a coroutine function: each call of it holds the lock."""
        if not inspect.iscoroutinefunction(function):
            raise TypeError("decorate: `onehold.aio.lock` is for `async def` without `yield`")

        @functools.wraps(function)
        async def call(*arguments: Any, **named: Any) -> Any:
            async with await self.acquire():
                return await function(*arguments, **named)

        return cast("Function", call)


def lock(
    *names: Name,
    wait: Optional[Duration] = None,
    ttl: Optional[Duration] = None,
    reentrant: bool = False,
    on_lost: Optional[OnLost] = None,
    program: Optional[Name] = None,
    **options: Unpack[Options],
) -> Lock:
    """As `onehold.lock`. `on_lost` is called in the event loop, and may be the `cancel` of a task."""
    asked = request(names, wait=wait, ttl=ttl, reentrant=reentrant, **options)
    return Lock(asked, names, program, on_lost)


async def try_lock(
    *names: Name,
    ttl: Optional[Duration] = None,
    reentrant: bool = False,
    on_lost: Optional[OnLost] = None,
    program: Optional[Name] = None,
    **options: Unpack[Options],
) -> Optional[Hold]:
    """As `onehold.try_lock`. Use what it returns as `async with hold:`."""
    asked = request(names, no_wait=True, ttl=ttl, reentrant=reentrant, **options)
    try:
        return await Lock(asked, names, program, on_lost).acquire()
    except Locked:
        return None

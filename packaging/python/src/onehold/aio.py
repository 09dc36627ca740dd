"""The same locks for asyncio: `async with onehold.aio.lock("backup", wait="5m") as hold`."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import functools
import inspect
from types import TracebackType
from typing import Any, Awaitable, Callable, List, Optional, Tuple, Type, TypeVar, cast

from onehold._hold import OnLost, forked, loss, not_held, own_hold
from onehold._options import Duration, Name, Options, Unpack, words
from onehold._pipe import Holder
from onehold._program import find_program
from onehold.errors import Answer, Locked, Lost

__all__ = ["Hold", "Lock", "lock", "try_lock"]

Function = TypeVar("Function", bound=Callable[..., Awaitable[Any]])


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
    lost: asyncio.Event

    def __init__(self, command: List[str], names: Tuple[Name, ...], on_lost: Optional[OnLost]) -> None:
        self.names = names
        self.lost = asyncio.Event()
        self._on_lost = on_lost
        self._released = False
        self._loss: Optional[Lost] = None
        self._holder = Holder(command)
        self._loop = asyncio.get_running_loop()
        self._first: asyncio.Future[Optional[Answer]] = self._loop.create_future()
        self._is_held = False
        self._ended = asyncio.Event()
        self._exited = asyncio.Event()
        self._status = 0

    async def _take(self) -> None:
        self._holder.start()
        messages = _Messages(self)
        try:
            # Not a task, which the end of `asyncio.run` would cancel before the block has ended.
            await self._loop.connect_read_pipe(lambda: messages, self._holder.stdout)
            event = await self._first
            if not self._is_held:
                self._holder.let_go()
                await self._exited.wait()
                raise not_held(event, self.names, self._status)
        except BaseException:
            self._holder.let_go()
            if messages.connected:
                await self._exited.wait()
            else:
                self._holder.end()
            raise

    def _message(self, event: Optional[Answer]) -> None:
        if not self._first.done():
            if event is not None and event["event"] == "held":
                # Here, because `lost` may be in the same read.
                self._is_held = True
                self.number = event["hold"]
                self.slot = event["slot"]
                self.slots = event["slots"]
                self.file = event["file"]
                self.displaced = event["displaced"]
                self._holder.after_fork = self._not_held_in_child
            self._first.set_result(event)
        elif self._is_held and not self._ended.is_set():
            self._loss = loss(event, self.names, self.number, self._released)
            self._ended.set()
            if self._loss is not None:
                self.lost.set()
                self._loop.call_soon(self._tell, self._loss)

    def _tell(self, lost: Lost) -> None:
        # Not behind the block: it may be `task.cancel`.
        if self._on_lost is not None and not self._released:
            self._on_lost(lost)

    def _end_of_messages(self) -> None:
        self._message(None)
        # Its stdin and stdout have ended, so the process exits: this does not block the loop for long.
        self._status = self._holder.wait()
        self._exited.set()

    def _not_held_in_child(self) -> None:
        self._loss = forked(self.names, self.number)
        self.lost.set()
        self._ended.set()

    async def release(self) -> None:
        """Releases the lock, and returns when it is free. A second call raises nothing."""
        self._released = True
        self._holder.let_go()
        await self._ended.wait()
        lost, self._loss = self._loss, None
        if lost is not None:
            raise lost
        if not self.lost.is_set():
            # Not after a loss: where etcd does not answer, the process needs some seconds to exit.
            await self._exited.wait()

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
        except Lost:
            if kind is None:
                raise


class _Messages(asyncio.Protocol):
    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self.connected = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.connected = True
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for event in self._hold._holder.messages(data):
            self._hold._message(event)
            if event is None:
                self._transport.close()

    def connection_lost(self, exc: Optional[Exception]) -> None:
        self._hold._end_of_messages()


class Lock:
    """A lock to take: by `async with`, by `acquire`, or as a decorator. Any number of tasks may use one at once.

    In a generator, use `async with await lock.acquire()`: it may end in another task.
    """

    def __init__(
        self, line: List[str], names: Tuple[Name, ...], program: Optional[Name], on_lost: Optional[OnLost]
    ) -> None:
        self._line = line
        self._names = names
        self._program = program
        self._on_lost = on_lost
        self._holds: List[Tuple[object, Hold]] = []

    async def acquire(self) -> Hold:
        """Takes the lock until `release` of what it returns, or the end of this process."""
        hold = Hold([find_program(self._program), *self._line], self._names, self._on_lost)
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
    line = words("hold", names, wait=wait, ttl=ttl, reentrant=reentrant, **options)
    return Lock(line, names, program, on_lost)


async def try_lock(
    *names: Name,
    ttl: Optional[Duration] = None,
    reentrant: bool = False,
    on_lost: Optional[OnLost] = None,
    program: Optional[Name] = None,
    **options: Unpack[Options],
) -> Optional[Hold]:
    """As `onehold.try_lock`. Use what it returns as `async with hold:`."""
    line = words("hold", names, no_wait=True, ttl=ttl, reentrant=reentrant, **options)
    try:
        return await Lock(line, names, program, on_lost).acquire()
    except Locked:
        return None

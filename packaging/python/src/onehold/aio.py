"""The same locks for asyncio: `async with onehold.aio.lock("backup", wait="5m") as hold`."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from types import TracebackType
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Dict, List, Optional, Tuple, Type, TypeVar, cast

from onehold._hold import OnLost, forked, loss, no_answer
from onehold._options import Duration, Name, Options, words
from onehold._pipe import Holder
from onehold._program import find_program
from onehold.errors import Answer, Locked, Lost, failure

if TYPE_CHECKING:
    # Type checkers have it built in, and nothing needs it when the program runs.
    from typing_extensions import Unpack

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

    def __init__(self, names: Tuple[Name, ...], on_lost: Optional[OnLost], holder: Holder) -> None:
        self.names = names
        self.lost = asyncio.Event()
        self._on_lost = on_lost
        self._released = False
        self._loss: Optional[Lost] = None
        self._holder = holder
        self._loop = asyncio.get_running_loop()
        self._first: asyncio.Future[Optional[Answer]] = self._loop.create_future()
        self._is_held = False
        self._ended = asyncio.Event()
        self._exited = asyncio.Event()

    async def _wait(self) -> None:
        # Not a task, which the end of `asyncio.run` would cancel before the block has ended.
        await self._loop.connect_read_pipe(lambda: _Messages(self), self._holder.stdout)
        event = await self._first
        if event is None:
            raise no_answer(self.names, self._holder.process.wait())
        if event["event"] == "failed":
            raise failure(event)

    def _message(self, event: Optional[Answer]) -> None:
        if event is not None and event["event"] == "waiting":
            return
        if not self._first.done():
            if event is not None and event["event"] == "held":
                # Here, because `lost` may be in the same read.
                self._is_held = True
                self.number = event["hold"]
                self.slot = event["slot"]
                self.slots = event["slots"]
                self.file = event["file"]
                self.displaced = event["displaced"]
            self._first.set_result(event)
        elif self._is_held and not self._ended.is_set():
            self._loss = loss(event, self.names, self.number)
            self._ended.set()
            if self._loss is not None:
                self.lost.set()
                if self._on_lost is not None:
                    self._loop.call_soon(self._on_lost, self._loss)

    def _end_of_messages(self) -> None:
        self._message(None)
        # Its stdout has ended, so the process exits: this does not block the loop for long.
        self._holder.process.wait()
        self._exited.set()

    async def release(self) -> None:
        """Releases the lock, and returns when it is free. A second call does nothing."""
        if self._released:
            return
        self._released = True
        self._holder.let_go()
        if self._holder.forked:
            raise forked(self.names, self.number)
        await self._ended.wait()
        if self._loss is not None:
            # Without its process: where etcd does not answer, that needs some seconds to exit.
            raise self._loss
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
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._hold._message(json.loads(line))  # pyright: ignore[reportPrivateUsage]

    def connection_lost(self, exc: Optional[Exception]) -> None:
        self._hold._end_of_messages()  # pyright: ignore[reportPrivateUsage]


class Lock:
    """A lock to take: by `async with`, by `acquire`, or as a decorator. Any number of tasks may use one at once."""

    def __init__(
        self, line: List[str], names: Tuple[Name, ...], program: Optional[Name], on_lost: Optional[OnLost]
    ) -> None:
        self._line = line
        self._names = names
        self._program = program
        self._on_lost = on_lost
        self._holds: Dict[Optional[asyncio.Task[Any]], List[Hold]] = {}

    async def acquire(self) -> Hold:
        """Takes the lock until `release` of what it returns, or the end of this process."""
        holder = Holder([find_program(self._program), *self._line])
        hold = Hold(self._names, self._on_lost, holder)
        try:
            await hold._wait()  # pyright: ignore[reportPrivateUsage]
        except BaseException:
            holder.let_go()
            await hold._exited.wait()  # pyright: ignore[reportPrivateUsage]
            raise
        return hold

    async def __aenter__(self) -> Hold:
        hold = await self.acquire()
        self._holds.setdefault(asyncio.current_task(), []).append(hold)
        return hold

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        task = asyncio.current_task()
        hold = self._holds[task].pop()
        if not self._holds[task]:
            del self._holds[task]
        await hold.__aexit__(kind, error, traceback)

    def __call__(self, function: Function) -> Function:
        """Decorates a coroutine function: each call of it holds the lock."""
        if not inspect.iscoroutinefunction(function):
            raise TypeError("decorate: `onehold.aio.lock` is for `async def` without `yield`")

        @functools.wraps(function)
        async def call(*arguments: Any, **named: Any) -> Any:
            async with self:
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
    """As `onehold.lock`. `on_lost` is called in the event loop, and may be `asyncio.current_task().cancel`."""
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

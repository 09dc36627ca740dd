"""What mypy and pyright accept of the functions, and what they refuse. It is not executed."""

from __future__ import annotations

import asyncio
import pathlib
import signal
import threading
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Optional

import onehold
import onehold.aio

if TYPE_CHECKING:
    from typing_extensions import assert_type


def blocks() -> None:
    with onehold.lock("a", "b", wait=timedelta(minutes=5), slots=3, owner="o", message="m") as hold:
        assert_type(hold, onehold.Hold)
        assert_type(hold.slot, Optional[int])
        assert_type(hold.lost, threading.Event)
    with onehold.lock(pathlib.Path("app.lock"), format="flock", lost_signal=signal.SIGTERM, on_lost=print):
        pass
    maybe = onehold.try_lock("a", directory="etcd://db1/locks")
    if maybe is not None:
        with maybe as held:
            assert_type(held.number, int)
    if onehold.check("a")["state"] == "free":
        return


def leases() -> None:
    with onehold.acquire("a", ttl="30m", wait=1.5, owner="o") as lease:
        lease.renew(ttl=60)
        assert_type(lease.expires_at, Optional[datetime])


def errors() -> None:
    try:
        onehold.lock("a").acquire().release()
    except onehold.TimedOut as error:
        assert_type(error.since, Optional[datetime])
    except onehold.Locked as error:
        assert_type(error.pid, Optional[int])
    except onehold.Lost as error:
        assert_type(error.number, Optional[int])


@onehold.lock("a", wait="5m")
def decorated(number: int) -> str:
    return str(number)


@onehold.aio.lock("a", wait="5m")
async def decorated_task(number: int) -> str:
    return str(number)


async def tasks() -> None:
    task = asyncio.current_task()
    assert task
    async with onehold.aio.lock("a", wait="5m", on_lost=task.cancel) as hold:
        assert_type(hold, onehold.aio.Hold)
        assert_type(hold.lost, asyncio.Event)
    assert_type(await decorated_task(1), str)
    assert_type(await onehold.aio.try_lock("a"), Optional[onehold.aio.Hold])


def refused() -> None:
    assert_type(decorated(1), str)
    decorated("1")  # type: ignore[arg-type]
    onehold.lock("a", wiat=5)  # type: ignore[call-arg]
    onehold.lock("a", timeout=5)  # type: ignore[call-arg]
    onehold.lock(7)  # type: ignore[arg-type]
    onehold.lock("a", wait=[])  # type: ignore[arg-type]
    onehold.acquire("a")  # type: ignore[call-arg]
    onehold.try_lock("a", wait=5)  # type: ignore[call-arg]

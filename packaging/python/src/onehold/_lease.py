"""Leases: locks that are held for a time, whatever becomes of this process."""

from __future__ import annotations

from datetime import datetime
from types import TracebackType
from typing import Optional, Tuple, Type, cast

from onehold._answer import Command, ask
from onehold._options import Duration, Name, Options, Unpack, display, name_of, store
from onehold.errors import Answer, Lost, attach, failure, moment


class Lease:
    """A lock that is held until it expires. `renew` starts its time again, `release` ends it."""

    number: int
    """Hold number. It only grows, so a storage can refuse an earlier holder."""
    slot: Optional[int]
    """Number of the slot, 0 and up, if the lock is shared or has slots."""
    expires_at: Optional[datetime]

    def __init__(
        self,
        answer: Answer,
        names: Tuple[Name, ...],
        program: Optional[Name],
        directory: Optional[Name],
        profile: Optional[str],
        format: Optional[str],
    ) -> None:
        self.names = names
        # This process may change its directory before `release`.
        self._first = tuple(name_of(name) for name in names[:1])
        self.number = answer["hold"]
        self.slot = answer["lock"]["slot"]
        self.expires_at = moment(answer["lock"]["expires_at"])
        self._program = program
        self._directory = store(directory)
        self._profile = profile
        self._format = format
        self._released = False

    def _ask(self, command: Command, ttl: Optional[Duration] = None) -> Answer:
        answer = ask(
            command,
            self._first,
            program=self._program,
            hold=self.number,
            ttl=ttl,
            directory=self._directory,
            profile=self._profile,
            format=self._format,
        )
        # NOT_HELD of `renew`, NOT_OWNER of both: another hold may have begun.
        if not answer["success"] and answer["error"]["code"] not in ("NOT_HELD", "NOT_OWNER"):
            raise failure(answer)
        return answer

    def _lost(self, answer: Answer) -> Lost:
        text = f"lost lock {display(self.names)}: its lease has ended: {answer['message']}"
        return Lost(text, {**answer, "hold": self.number, "reason": "expired"})

    def renew(self, ttl: Optional[Duration] = None) -> None:
        """Restarts the time to live, or sets a new one. Raises `Lost` if somebody else may have held the lock."""
        answer = self._ask("renew", ttl)
        if not answer["success"]:
            raise self._lost(answer)
        self.expires_at = moment(answer["lock"]["expires_at"])

    def release(self) -> None:
        """Releases the lock. Raises `Lost` if the lease had expired before. A second call does nothing.

        After any other `Error` it can be called again.
        """
        if self._released:
            return
        self._released = True
        try:
            answer = self._ask("release")
        except BaseException:
            self._released = False
            raise
        before = cast("Optional[Answer]", answer["lock"])
        if not answer["success"] or before is None or before["state"] != "held":
            raise self._lost(answer)

    def __repr__(self) -> str:
        state = "released" if self._released else f"until {self.expires_at}"
        return f"<onehold.Lease {display(self.names)}, hold {self.number}, {state}>"

    def __enter__(self) -> Lease:
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


def acquire(
    *names: Name,
    ttl: Duration,
    wait: Optional[Duration] = None,
    program: Optional[Name] = None,
    **options: Unpack[Options],
) -> Lease:
    """Acquires a lock for the time `ttl`, whether this process lives or not.

    A second call with the same `owner` gets the same lease, with its time started again. `Locked` is raised if the
    lock is held, and `TimedOut` after a wait.
    """
    answer = ask("acquire", names, program=program, ttl=ttl, wait=wait, **options)
    if not answer["success"]:
        raise failure(answer)
    return Lease(
        answer, names, program, options.get("directory"), options.get("profile"), options.get("format")
    )

"""What can go wrong, with the fields of the JSON object that onehold has printed."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Mapping, Optional, cast

Answer = Mapping[str, Any]


def moment(text: Optional[str]) -> Optional[datetime]:
    """A time of RFC 3339. Before Python 3.11 `fromisoformat` accepts neither `Z` nor nanoseconds."""
    if text is None:
        return None
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d*", r"\1", text).replace("Z", "+00:00"))


class Error(Exception):
    """An answer of onehold that is a failure. `answer` is the whole JSON object, `code` its `error.code`."""

    def __init__(self, text: str, answer: Optional[Answer] = None) -> None:
        super().__init__(text)
        self.answer: Answer = {} if answer is None else answer

    @property
    def code(self) -> Optional[str]:
        return cast("Answer", self.answer.get("error") or {}).get("code")


class NotFound(Error):
    """The program `onehold` is not installed."""


class Locked(Error):
    """Another holder has the lock. The properties are `None` where nothing is known about it."""

    @property
    def holder(self) -> Optional[Answer]:
        """The lock and its holder: the lock object of onehold-json(5)."""
        return cast("Optional[Answer]", self.answer.get("lock"))

    def _of_holder(self, key: str) -> Any:
        return (self.holder or {}).get(key)

    @property
    def host(self) -> Optional[str]:
        return cast("Optional[str]", self._of_holder("hostname"))

    @property
    def pid(self) -> Optional[int]:
        """The program that holds the lock, not the `onehold` that holds it for the program."""
        program = self._of_holder("program")
        return cast("Optional[int]", program["pid"] if program else self._of_holder("pid"))

    @property
    def owner(self) -> Optional[str]:
        return cast("Optional[str]", self._of_holder("owner"))

    @property
    def since(self) -> Optional[datetime]:
        return moment(self._of_holder("acquired_at"))

    @property
    def message(self) -> Optional[str]:
        """The reason that the holder has given."""
        return cast("Optional[str]", self._of_holder("message"))


class TimedOut(Locked, TimeoutError):
    """The lock was held for as long as we were to wait."""


class Lost(Error):
    """The lock was broken, removed, or could not be kept, while it was held."""

    @property
    def number(self) -> Optional[int]:
        return cast("Optional[int]", self.answer.get("hold"))

    @property
    def reason(self) -> Optional[str]:
        """`broken`, `lost`, `signal`, `killed`, `stdin`, `forked` or, of a lease, `expired`."""
        return cast("Optional[str]", self.answer.get("reason"))


def failure(answer: Answer) -> Error:
    """The exception for an answer that is not a success."""
    kinds = {"blocked": Locked, "zombie-detected": Locked, "timeout": TimedOut}
    return kinds.get(answer["status"], Error)(answer["message"], answer)


def attach(error: BaseException, lost: Lost) -> None:
    """Notes a loss where a traceback shows it, beside an exception that is under way."""
    lost.__context__ = None
    first = error
    while first.__context__ is not None and first.__context__ is not lost:
        first = first.__context__
    if first is not lost and first.__context__ is None:
        first.__context__ = lost

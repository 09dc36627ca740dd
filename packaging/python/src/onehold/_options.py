"""Options of the functions, and the command line that they make."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any, List, Literal, Optional, Tuple, TypedDict, Union

if TYPE_CHECKING:
    from typing_extensions import Unpack as Unpack
elif sys.version_info >= (3, 11):
    from typing import Unpack
else:

    class Unpack:
        """For `typing.get_type_hints`."""

        def __class_getitem__(cls, options: Any) -> Any:
            return options


Duration = Union[str, float, timedelta]
Name = Union[str, os.PathLike[str]]
OnZombie = Literal["take", "ask", "fail"]


class Options(TypedDict, total=False):
    """What every lock accepts. The manual is onehold-hold(1), under the same names.

    A name is a `str`; a `pathlib.Path` is the path of a lock file. `directory` is that of the store, or an etcd URL.
    A time is `"5m"`, a number of seconds or a `timedelta`.
    """

    shared: bool
    slots: Optional[int]
    max_waiting: Optional[int]
    keep_place: Optional[Duration]
    owner: Optional[str]
    message: Optional[str]
    max_age: Optional[Duration]
    on_zombie: Optional[OnZombie]
    directory: Optional[Name]
    profile: Optional[str]
    format: Optional[str]


def duration(value: Duration) -> str:
    if isinstance(value, str):
        return value
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not seconds >= 0:
        raise ValueError(f"time: `{value}` is not a number of seconds from 0 up")
    return "forever" if seconds == float("inf") else f"{seconds:.6f}"


def display(names: Tuple[Name, ...]) -> str:
    return ", ".join(f"`{os.fspath(name)}`" for name in names)


def absolute(path: Name) -> str:
    """The same path after `os.chdir`. Not `os.path.abspath`, which drops `..` behind a symbolic link."""
    text = os.fspath(path)
    return text if os.path.isabs(text) else os.path.join(os.getcwd(), text)


def store(directory: Optional[Name]) -> Optional[str]:
    if directory is None:
        return None
    text = os.fspath(directory)
    return text if "://" in text else absolute(text)


def name_of(name: Name) -> str:
    return absolute(name) if not isinstance(name, str) or name.startswith(("./", "../")) else name


def words(
    verb: str,
    names: Tuple[Name, ...],
    *,
    wait: Optional[Duration] = None,
    shared: bool = False,
    slots: Optional[int] = None,
    max_waiting: Optional[int] = None,
    keep_place: Optional[Duration] = None,
    ttl: Optional[Duration] = None,
    owner: Optional[str] = None,
    message: Optional[str] = None,
    max_age: Optional[Duration] = None,
    on_zombie: Optional[OnZombie] = None,
    hold: Optional[int] = None,
    directory: Optional[Name] = None,
    profile: Optional[str] = None,
    format: Optional[str] = None,
    no_wait: bool = False,
    reentrant: bool = False,
) -> List[str]:
    """The command line behind the program."""
    line = [verb, "--json"]
    for flag, given in (("shared", shared), ("no-wait", no_wait), ("reentrant", reentrant)):
        if given:
            line.append(f"--{flag}")
    for option, value in (
        ("wait", None if wait is None else duration(wait)),
        ("keep-place", None if keep_place is None else duration(keep_place)),
        ("ttl", None if ttl is None else duration(ttl)),
        ("max-age", None if max_age is None else duration(max_age)),
        ("slots", slots),
        ("max-waiting", max_waiting),
        ("owner", owner),
        ("message", message),
        ("on-zombie", on_zombie),
        ("hold", hold),
        ("dir", store(directory)),
        ("profile", profile),
        ("format", format),
    ):
        if value is not None:
            # One word: the value may begin with a hyphen.
            line.append(f"--{option}={value}")
    texts = [name_of(name) for name in names]
    if any(text.startswith("-") for text in texts):
        # Only then: behind it, `acquire` accepts no other names.
        line.append("--")
    return [*line, *texts]

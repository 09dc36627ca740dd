"""Options of the functions, and the requests that they make."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Dict, Literal, Optional, Tuple, TypedDict, Union, cast

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
    if isinstance(value, bool) or not isinstance(value, (int, float, timedelta)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"time: `{value!r}` is neither a number of seconds nor a `str` or a `timedelta`")
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


def request(
    names: Tuple[Name, ...],
    *,
    wait: Optional[Duration] = None,
    ttl: Optional[Duration] = None,
    no_wait: bool = False,
    reentrant: bool = False,
    command: Literal["hold", "acquire", "renew", "release", "check"] = "hold",
    hold: Optional[int] = None,
    **options: Unpack[Options],
) -> bytes:
    """What a request has behind its number: `onehold hold --serve` takes the same options."""
    asked: Dict[str, Any] = {"command": command, "names": [name_of(name) for name in names]}
    if hold is not None:
        asked["hold"] = hold
    if no_wait:
        asked["no_wait"] = True
    if reentrant:
        asked["reentrant"] = True
    if wait is not None:
        asked["wait"] = duration(wait)
    if ttl is not None:
        asked["ttl"] = duration(ttl)
    if options.get("profile") is not None or "ONEHOLD_PROFILE" in os.environ:
        # What its paths are relative to.
        asked["cwd"] = os.getcwd()
    for option, value in options.items():
        if option not in Options.__annotations__:
            instead = ": use `wait`" if option == "timeout" else ""
            raise TypeError(f"unknown option `{option}`{instead}")
        if value is None or value is False:
            continue
        if option == "directory":
            asked["dir"] = store(cast("Name", value))
        elif option in ("keep_place", "max_age"):
            asked[option] = duration(cast("Duration", value))
        else:
            asked[option] = value
    # Half of a character is a `UnicodeEncodeError`: escaped, it would be no request, and have no answer.
    return json.dumps(asked, ensure_ascii=False)[1:-1].encode()


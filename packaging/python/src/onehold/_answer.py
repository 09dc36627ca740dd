"""Requests that hold nothing while they are answered: of leases, and who holds a lock."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Literal, Optional, Tuple, cast

from onehold import _program
from onehold._options import Duration, Name, Options, Unpack, display, request
from onehold._server import Claim, caller_of_thread, is_reader
from onehold.errors import Answer, Error, failure

Command = Literal["acquire", "renew", "release", "check"]


def ask(
    command: Command,
    names: Tuple[Name, ...],
    *,
    program: Optional[Name],
    hold: Optional[int] = None,
    ttl: Optional[Duration] = None,
    wait: Optional[Duration] = None,
    **options: Unpack[Options],
) -> Answer:
    """The answer to a request, of a failure too."""
    tail = request(names, command=command, hold=hold, ttl=ttl, wait=wait, **options)
    if is_reader():
        return _program.ask(program, _line(tail))
    while True:
        claim = Claim(program, tail)
        try:
            claim.ask(caller_of_thread())
            answer = claim.answer()
        except BaseException:
            claim.let_go()
            claim.wait_for_end()
            last = claim.last
            if command == "acquire" and last is not None and last["success"] and not last.get("repeated"):
                # It was acquired before the server was told. One that the owner had before stays.
                ask("release", names[:1], program=program, hold=last["hold"], **_store(options))
            raise
        if answer is not None:
            return answer
        status = claim.server.status if claim.server is not None else 0
        # A server that was killed may have done it already. One that has ended by itself has answered what it has done.
        if not claim.was_too_late() or (status != 0 and command in ("acquire", "release")):
            raise Error(f"{command} {display(names)}: onehold exited with {status} without an answer")


def _line(tail: bytes) -> List[str]:
    """The command line that asks for the same as a request. It starts in the same directory."""
    asked = cast("Dict[str, Any]", json.loads(b"{%b}" % tail))
    command, names = asked.pop("command"), asked.pop("names")
    asked.pop("cwd", None)
    flags = [f"--{key.replace('_', '-')}" + ("" if value is True else f"={value}") for key, value in asked.items()]
    return [command, "--json", *flags, "--", *names]


def _store(options: Options) -> Options:
    return {
        "directory": options.get("directory"),
        "profile": options.get("profile"),
        "format": options.get("format"),
    }


def check(
    *names: Name,
    directory: Optional[Name] = None,
    profile: Optional[str] = None,
    format: Optional[str] = None,
    program: Optional[Name] = None,
) -> Answer:
    """Who holds a lock: the lock object of onehold-json(5), with `state`, `pid`, `hostname`, `message` and others."""
    answer = ask("check", names, program=program, directory=directory, profile=profile, format=format)
    if answer["lock"] is None:
        raise failure(answer)
    return cast("Answer", answer["lock"])

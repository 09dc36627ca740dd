"""A server of the Model Context Protocol on stdio: locks as tools that a model discovers.

    python -m onehold.mcp

It needs the extra `onehold[mcp]`, and Python 3.10 or later. Its locks are those of the project of the working directory,
unless ONEHOLD_DIR is set. What a model claims is a lease that belongs to this server, and is released when it ends.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from typing import Any, AsyncGenerator, Dict, List, Optional

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from onehold._program import ask
from onehold.errors import Answer

OWNER = os.environ.get("ONEHOLD_OWNER") or f"mcp-{uuid.uuid4()}"
"""The label of all that this server claims."""

TTL = "30m"
INSTRUCTIONS = (
    "Locks for what only one session may do at a time in this project: builds, ports, devices, files that are edited. "
    "Claim before, renew what takes long, release after. A lock is advisory: it binds those who ask for it."
)


def _ask(verb: str, *words: str) -> Answer:
    store = [] if os.environ.get("ONEHOLD_DIR") else ["--project"]
    return ask(None, [verb, "--json", *store, *words])


def _named(names: Optional[List[str]], paths: Optional[List[str]]) -> List[str]:
    if not (names or paths):
        raise ToolError("name a lock, or the path of a file or directory")
    for name in names or []:
        # It would be an option.
        if name.startswith("-"):
            raise ToolError(f"invalid lock name `{name}`: begins with a hyphen")
    return [*[f"--path={path}" for path in paths or []], *(names or [])]


def _brief(lock: Answer) -> Dict[str, Any]:
    """What a model asks of a lock."""
    keys = ("name", "state", "owner", "pid", "hostname", "acquired_at", "expires_at", "message")
    waiters = [waiter["owner"] or f"process {waiter['pid']}" for waiter in lock["waiters"]]
    return {**{key: lock[key] for key in keys}, "mine": lock["owner"] == OWNER, "waiters": waiters}


def _result(answer: Answer) -> Dict[str, Any]:
    """What happened, in words, and the lock. A lock that another has is an answer, and no error."""
    if not answer["success"] and answer["status"] not in ("blocked", "timeout", "zombie-detected"):
        raise ToolError(answer["message"])
    lock = answer["lock"]
    return {"done": answer["success"], "message": answer["message"], "lock": None if lock is None else _brief(lock)}


@contextlib.asynccontextmanager
async def _lifespan(_server: Any) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        _ask("release", "--all", "--owner", OWNER)


server = MCPServer("onehold", instructions=INSTRUCTIONS, lifespan=_lifespan, log_level="WARNING")


@server.tool()
def claim(
    names: Optional[List[str]] = None,
    paths: Optional[List[str]] = None,
    ttl: str = TTL,
    wait: str = "0",
    message: str = "",
) -> Dict[str, Any]:
    """Claims locks, all or none: names ("build"), and paths of files or directories that are to be edited.

    A claim lasts for `ttl` ("30m") and is renewed by claiming again. `wait` ("5m"): how long to wait for others.
    `message`: why, for others to read. `done` is false if another has one of them; then `lock` says who, since when and
    why.
    """
    words = [f"--ttl={ttl}", f"--wait={wait}", f"--owner={OWNER}", *([f"--message={message}"] if message else [])]
    return _result(_ask("acquire", *words, *_named(names, paths)))


@server.tool()
def release(name: str = "", path: str = "", everything: bool = False) -> Dict[str, Any]:
    """Releases a claim of this session, or with `everything` all of them."""
    if everything:
        return _result(_ask("release", "--all", f"--owner={OWNER}"))
    return _result(_ask("release", f"--owner={OWNER}", *_named([name] if name else None, [path] if path else None)))


@server.tool()
def renew(name: str = "", path: str = "", ttl: str = TTL) -> Dict[str, Any]:
    """Lets a claim of this session last for `ttl` from now on. An error if it has been lost."""
    words = [f"--owner={OWNER}", f"--ttl={ttl}"]
    return _result(_ask("renew", *words, *_named([name] if name else None, [path] if path else None)))


@server.tool()
def who(name: str = "", path: str = "") -> Dict[str, Any]:
    """Says who has a lock or edits a file, since when and why, and who waits for it."""
    return _result(_ask("check", *_named([name] if name else None, [path] if path else None)))


@server.tool()
def wait(names: Optional[List[str]] = None, paths: Optional[List[str]] = None, limit: str = "5m") -> Dict[str, Any]:
    """Waits until locks are free, for at most `limit`, and takes nothing."""
    return _result(_ask("wait", f"--wait={limit}", *_named(names, paths)))


# The name of the tool would hide that of the type.
@server.tool(name="list")
def list_locks(prefix: str = "") -> List[Dict[str, Any]]:
    """Lists the locks of the project whose names begin with a prefix; those of files begin with "files/"."""
    answer = _ask("list", "--", *([prefix] if prefix else []))
    if not answer["success"]:
        raise ToolError(answer["message"])
    return [_brief(lock) for lock in answer["locks"]]


def main() -> None:
    """Serves until stdin ends."""
    server.run("stdio")


if __name__ == "__main__":
    main()

"""The MCP server, by the client of the official SDK over a pipe."""

import asyncio
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("mcp.server.mcpserver", reason="needs the extra: onehold[mcp]")

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository, whose store is used."""
    repository = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", repository], check=True)
    monkeypatch.delenv("ONEHOLD_DIR")
    monkeypatch.chdir(repository)
    return repository


def answers(*calls, owner=None):
    """What a session answers to these calls, each a tool and its arguments, and what is held before its end."""

    async def session():
        env = {**os.environ, **({"ONEHOLD_OWNER": owner} if owner else {})}
        server = StdioServerParameters(command=sys.executable, args=["-m", "onehold.mcp"], env=env, cwd=os.getcwd())
        async with stdio_client(server) as (read, write), ClientSession(read, write) as client:
            await client.initialize()
            tools = {tool.name for tool in (await client.list_tools()).tools}
            assert tools == {"claim", "release", "renew", "who", "wait", "list"}
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    return [(result.is_error, [content.text for content in result.content]) for result in asyncio.run(session())]


def value(answer):
    is_error, texts = answer
    assert not is_error, texts
    return json.loads(texts[0])


def held(program):
    done = subprocess.run([program, "list", "--project", "--json"], capture_output=True, check=True)
    return {lock["name"]: lock["owner"] for lock in json.loads(done.stdout)["locks"]}


def test_session_claims_asks_and_renews_and_leaves_nothing(project, program):
    claimed, seen, renewed, listed, released, all_of_it = answers(
        ("claim", {"names": ["build"], "paths": ["src/a.rs"], "message": "rename", "ttl": "10m"}),
        ("who", {"path": "src/a.rs"}),
        ("renew", {"name": "build", "ttl": "1h"}),
        ("list", {"prefix": "files/"}),
        ("release", {"name": "build"}),
        ("claim", {"names": ["port-8080"]}),
    )
    assert value(claimed)["done"] and value(all_of_it)["done"]
    lock = value(seen)["lock"]
    assert (lock["name"], lock["state"], lock["message"], lock["mine"]) == ("files/src/a.rs", "held", "rename", True)
    assert value(renewed)["done"] and value(released)["done"]
    assert value(listed)["name"] == "files/src/a.rs"
    assert held(program) == {}


def test_claim_of_another_is_an_answer_that_says_who(project, program):
    claim = [program, "acquire", "--path", "src", "--ttl", "1h", "--owner", "other", "-m", "big move"]
    subprocess.run(claim, check=True, capture_output=True)
    refused, waited, stolen = answers(
        ("claim", {"paths": ["src/a.rs"]}), ("wait", {"paths": ["src"], "limit": "50ms"}), ("release", {"path": "src"})
    )
    assert not value(refused)["done"] and not value(waited)["done"]
    lock = value(refused)["lock"]
    assert (lock["owner"], lock["message"], lock["mine"]) == ("other", "big move", False)
    assert stolen[0]
    assert held(program) == {"files/src": "other"}


def test_mistakes_are_errors(project):
    nothing, option, outside, lost = answers(
        ("claim", {}),
        ("claim", {"names": ["--force"]}),
        ("claim", {"paths": ["/etc/passwd"]}),
        ("renew", {"name": "never-claimed"}),
    )
    assert nothing[0] and option[0] and outside[0] and lost[0]
    assert "outside of the project" in outside[1][0]

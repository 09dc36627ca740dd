"""The hook with the real clients: they do what a server on loopback says in place of their model (model.py).

    python3 packaging/agents/tests/clients.py DIRECTORY

`onehold` is the one on PATH; git is needed, too. DIRECTORY has the clients, from npm:

    npm install --prefix DIRECTORY @anthropic-ai/claude-code @google/gemini-cli
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from model import Model

HERE = pathlib.Path(__file__).resolve().parent
CLIENTS = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve() / "node_modules" / ".bin"
PATIENCE = 120


class Clients(unittest.TestCase):
    """A repository whose settings are those to copy, and sessions that follow plans."""

    def setUp(self):
        room = tempfile.TemporaryDirectory()
        self.addCleanup(room.cleanup)
        self.room = pathlib.Path(room.name).resolve()
        self.repo = self.room / "repo"
        self.file = self.repo / "a.rs"
        self.plans = {}
        self.model = Model(self.plans)
        self.addCleanup(self.model.server.shutdown)
        programs = self.room / "bin"
        programs.mkdir()
        (programs / "onehold").symlink_to(shutil.which("onehold"))
        (programs / "onehold-hook").symlink_to(HERE.parent / "onehold-hook")
        self.repo.mkdir()
        self.file.write_text("one\n")
        for client in ("claude", "gemini"):
            (self.repo / f".{client}").mkdir()
            shutil.copy(HERE.parent / f"{client}-settings.json", self.repo / f".{client}" / "settings.json")
        # It would ask how to sign in, and at its end send statistics.
        settings = {"security": {"auth": {"selectedType": "gemini-api-key"}}, "privacy": {"usageStatisticsEnabled": False}}
        (self.room / ".gemini").mkdir()
        (self.room / ".gemini" / "settings.json").write_text(json.dumps(settings))
        node = pathlib.Path(shutil.which("node")).parent
        # Nothing of the session that runs this.
        self.env = {
            "PATH": f"{programs}:{node}:/usr/bin:/bin",
            "HOME": str(self.room),
            "ANTHROPIC_BASE_URL": self.model.url,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "GOOGLE_GEMINI_BASE_URL": self.model.url,
            "GEMINI_API_KEY": "none",
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
            "GEMINI_TELEMETRY_ENABLED": "false",
        }
        subprocess.run(["git", "init", "-q"], cwd=self.repo, env=self.env, check=True)

    def start(self, client, plan, *calls):
        """A session that makes these calls, one after the other, and ends."""
        self.plans[plan] = calls
        line = {
            "claude": ["claude", "--permission-mode", "acceptEdits", "--allowedTools", "Bash,Agent", "-p"],
            "gemini": ["gemini", "--model", "gemini-2.5-flash", "--yolo", "--prompt"],
        }[client]
        session = subprocess.Popen(
            [CLIENTS / line[0], *line[1:], f"plan:{plan}"],
            cwd=self.repo,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.addCleanup(session.stdout.close)
        self.addCleanup(self.kill, session)
        return session

    def kill(self, session):
        if session.poll() is None:
            os.killpg(session.pid, signal.SIGKILL)
            session.wait()

    def results(self, session, plan):
        """What the client told its model of each call, once the session has ended."""
        said, _ = session.communicate(timeout=PATIENCE)
        self.assertEqual(session.returncode, 0, said)
        results = self.model.results.get(plan, [])
        self.assertEqual(len(results), len(self.plans[plan]), said)
        return results

    def held(self):
        line = ["onehold", "list", "--project", "--json"]
        done = subprocess.run(line, cwd=self.repo, env=self.env, capture_output=True, check=True)
        return {lock["name"]: lock["owner"] for lock in json.loads(done.stdout)["locks"]}

    def wait_until(self, told):
        deadline = time.monotonic() + PATIENCE
        while not told():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def read(self):
        return "Read", {"file_path": str(self.file)}

    def edit(self, old, new):
        return "Edit", {"file_path": str(self.file), "old_string": old, "new_string": new}

    def replace(self, old, new):
        return "replace", {"file_path": str(self.file), "old_string": old, "new_string": new, "instruction": "x"}

    def test_edit_of_a_file_that_another_session_has_is_denied_until_that_ends(self):
        others_are_over = threading.Event()

        def once_others_are_over():
            self.assertTrue(others_are_over.wait(PATIENCE))
            return self.edit("two", "three")

        first = self.start("claude", "first", self.read(), self.edit("one", "two"), once_others_are_over)
        self.wait_until(self.held)
        (owner,) = self.held().values()
        self.assertRegex(owner, "^claude-[0-9a-f-]{36}$")

        for client, calls in (
            ("claude", [self.read(), self.edit("two", "lost")]),
            ("gemini", [("read_file", {"file_path": "a.rs"}), self.replace("two", "lost")]),
        ):
            denied = self.results(self.start(client, f"{client}s", *calls), f"{client}s")[-1]
            for part in (f"`files/a.rs` is held by a lease of {owner}", "since", "Edit by an agent", "onehold wait"):
                self.assertIn(part, denied)
            self.assertEqual(self.file.read_text(), "two\n")
        self.assertEqual(self.held(), {"files/a.rs": owner})
        others_are_over.set()
        self.results(first, "first")
        self.assertEqual(self.file.read_text(), "three\n")
        # SessionEnd has released it.
        self.assertEqual(self.held(), {})

        calls = [("read_file", {"file_path": "a.rs"}), self.replace("three", "four")]
        self.results(self.start("gemini", "later", *calls), "later")
        self.assertEqual(self.file.read_text(), "four\n")
        self.assertEqual(self.held(), {})

    def test_agents_of_a_session_exclude_each_other_and_a_killed_one_leaves_its_claim_until_its_ttl(self):
        settings = self.repo / ".claude" / "settings.json"
        settings.write_text(settings.read_text().replace("--ttl 10m", "--ttl 20s"))
        of_agent = ("Write", {"file_path": str(self.repo / "b.rs"), "content": "x"})
        seen = []

        def ends():
            seen.append(self.held())
            return "Bash", {"command": "true", "description": "x"}

        self.plans["inner"] = [self.read(), self.edit("two", "lost"), of_agent, ends]
        agent = ("Agent", {"description": "d", "prompt": "plan:inner", "subagent_type": "general-purpose"})
        never = threading.Event()
        last = lambda: never.wait(PATIENCE) and None
        session = self.start("claude", "outer", self.read(), self.edit("one", "two"), agent, last)
        self.addCleanup(never.set)
        self.wait_until(lambda: len(self.model.results.get("outer", [])) == 3)
        denied = self.model.results["inner"][1]
        self.assertIn("`files/a.rs` is held by a lease of claude-", denied)
        (held,) = seen
        owner = held["files/a.rs"]
        self.assertRegex(held["files/b.rs"], f"^{owner}/.")
        # SubagentStop has released what the agent had.
        self.wait_until(lambda: self.held() == {"files/a.rs": owner})

        self.kill(session)
        self.assertEqual(self.held(), {"files/a.rs": owner})
        line = ["onehold", "wait", "-w", "1m", "--path", "a.rs"]
        subprocess.run(line, cwd=self.repo, env=self.env, check=True)
        self.results(self.start("claude", "next", self.read(), self.edit("two", "three")), "next")
        self.assertEqual(self.file.read_text(), "three\n")

    def test_command_of_the_list_is_denied_with_the_line_that_runs_it(self):
        (self.repo / "Makefile").write_text("all:\n\tonehold list --project -q\n")
        line = "onehold run --project -w 10m build -- make all"
        for client, tool in (("claude", "Bash"), ("gemini", "run_shell_command")):
            calls = [(tool, {"command": command, "description": "x"}) for command in ("make all", line)]
            denied, done = self.results(self.start(client, client, *calls), client)
            self.assertIn(f"`make all` is to run under a lock: {line}", denied)
            self.assertIn("build", done.replace(line, ""))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

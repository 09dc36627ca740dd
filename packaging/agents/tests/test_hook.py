"""Tests of onehold-hook on recorded events. `onehold` is the one on PATH; git is needed, too.

    python3 -m unittest discover packaging/agents/tests
"""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
import unittest.mock

HERE = pathlib.Path(__file__).resolve().parent
HOOK = HERE.parent / "onehold-hook"
SETTINGS = ("claude-settings.json", "gemini-settings.json")


class Project(unittest.TestCase):
    """A repository with a second worktree, in a directory that is removed at the end."""

    def setUp(self):
        room = tempfile.TemporaryDirectory()
        self.addCleanup(room.cleanup)
        self.room = pathlib.Path(room.name).resolve()
        self.repo, self.other = self.room / "repo", self.room / "other"
        (self.repo / "src").mkdir(parents=True)
        (self.repo / "src" / "a.rs").touch()
        self.env = {**os.environ, "HOME": str(self.room)}
        self.env.pop("ONEHOLD_DIR", None)
        user = ["-c", "user.name=a", "-c", "user.email=a@b"]
        for words in (["init", "-q"], ["add", "."], [*user, "commit", "-qm", "x"], ["worktree", "add", "-q", self.other]):
            subprocess.run(["git", *words], cwd=self.repo, env=self.env, check=True, capture_output=True)

    def hook(self, recorded, *words, env=None, **changes):
        """The answer to a recorded event, with some of its values changed; `None`: no answer."""
        event = json.loads((HERE / "recorded" / f"{recorded}.json").read_text().replace("@REPO@", str(self.repo)))
        event.update(changes)
        return self.hook_on(json.dumps(event), *words, env=env)

    def hook_on(self, text, *words, env=None):
        line = [sys.executable, "-IS", str(HOOK), *words]
        done = subprocess.run(line, input=text, env=env or self.env, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout) if done.stdout else None

    def onehold(self, *words):
        done = subprocess.run(["onehold", *words, "--json"], cwd=self.repo, env=self.env, capture_output=True, check=False)
        return json.loads(done.stdout)

    def held(self):
        return {lock["name"]: lock["owner"] for lock in self.onehold("list", "--project")["locks"]}

    def denied(self, answer):
        """The reason of a denial by Claude Code's protocol."""
        output = answer["hookSpecificOutput"]
        self.assertEqual((output["hookEventName"], output["permissionDecision"]), ("PreToolUse", "deny"))
        return output["permissionDecisionReason"]


class Claims(Project):
    def test_each_tool_that_edits_claims_its_file_and_no_other_does(self):
        session = "claude-0b2f9c1e-6a53-4d0e-9a54-3f1c8a1f2a10"
        for recorded in ("edit", "multi-edit", "write", "notebook-edit", "subagent-edit", "read", "bash"):
            self.assertIsNone(self.hook(f"claude-{recorded}"), recorded)
        self.assertEqual(
            self.held(),
            {
                "files/n.ipynb": session,
                "files/src/a.rs": session,
                "files/src/c.rs": f"{session}/a7c3",
                "files/src/new/b.rs": session,
            },
        )

    def test_another_session_is_denied_with_who_since_when_and_why(self):
        self.assertIsNone(self.hook("claude-edit"))
        path = str(self.other / "src" / "a.rs")
        answer = self.hook("claude-edit", session_id="s2", tool_input={"file_path": path})
        reason = self.denied(answer)
        for part in ("`files/src/a.rs` is held by a lease of claude-0b2f", "since", "Edit by an agent", "onehold wait"):
            self.assertIn(part, reason)
        self.assertEqual(self.hook("gemini-write-file")["decision"], "deny")
        self.assertEqual(self.hook("gemini-replace"), {})
        self.assertEqual(self.held()["files/src/d.rs"], "gemini-7c1d")

    def test_agents_of_a_session_exclude_each_other_unless_it_is_asked_for_the_session(self):
        self.assertIsNone(self.hook("claude-subagent-edit"))
        self.denied(self.hook("claude-subagent-edit", agent_id="b1"))
        self.hook("claude-subagent-stop")
        self.assertEqual(self.held(), {})
        for agent in ("a7c3", "b1"):
            self.assertIsNone(self.hook("claude-subagent-edit", "--owner", "session", agent_id=agent))

    def test_touched_file_is_renewed_and_no_other(self):
        for recorded in ("claude-edit", "claude-write"):
            self.hook(recorded, "--ttl", "1h")
        ends = {lock["name"]: lock["expires_at"] for lock in self.onehold("list", "--project")["locks"]}
        self.hook("claude-edit", "--ttl", "2h")
        after = {lock["name"]: lock["expires_at"] for lock in self.onehold("list", "--project")["locks"]}
        self.assertGreater(after["files/src/a.rs"], ends["files/src/a.rs"])
        self.assertEqual(after["files/src/new/b.rs"], ends["files/src/new/b.rs"])

    def test_end_of_the_session_releases_what_it_and_its_agents_have(self):
        for recorded in ("claude-edit", "claude-subagent-edit", "gemini-replace"):
            self.hook(recorded)
        self.hook("claude-subagent-stop", agent_id=None)
        self.assertEqual(len(self.held()), 3)
        self.hook("claude-session-end")
        self.assertEqual(self.held(), {"files/src/d.rs": "gemini-7c1d"})
        self.hook("gemini-session-end")
        self.assertEqual(self.held(), {})

    def test_file_of_a_killed_session_is_free_after_its_ttl(self):
        self.hook("claude-edit", "--ttl", "1s")
        deadline = time.monotonic() + 30
        while "hookSpecificOutput" in (self.hook("claude-edit", session_id="s2") or {}):
            self.assertLess(time.monotonic(), deadline)
        self.assertEqual(self.held()["files/src/a.rs"], "claude-s2")

    def test_every_spelling_of_a_path_claims_the_file_that_is_written(self):
        (self.room / "link").symlink_to(self.repo / "src")
        (self.repo / "to-other.rs").symlink_to(self.other / "x.rs")
        for path in (self.room / "link" / "a.rs", "src/../src/./a.rs", self.repo / "to-other.rs"):
            self.assertIsNone(self.hook("claude-edit", tool_input={"file_path": str(path)}), path)
        session = "claude-0b2f9c1e-6a53-4d0e-9a54-3f1c8a1f2a10"
        self.assertEqual(self.held(), {"files/src/a.rs": session, "files/x.rs": session})
        # A link out of the repository leads to no file of it.
        (self.repo / "out").symlink_to(self.room / "elsewhere")
        self.assertIsNone(self.hook("claude-edit", tool_input={"file_path": str(self.repo / "out")}))
        self.assertEqual(len(self.held()), 2)

    def test_line_to_wait_can_be_run_as_it_is(self):
        path = str(self.repo / "a b's.rs")
        for cwd in (self.repo, self.room):
            changes = {"tool_input": {"file_path": path}, "cwd": str(cwd)}
            self.assertIsNone(self.hook("claude-edit", "--ttl", "2s", **changes))
            reason = self.denied(self.hook("claude-edit", session_id="s2", **changes))
            self.assertIn("wait -w 10m --path", reason)
            line = reason.partition("or wait: ")[2]
            done = subprocess.run(["sh", "-c", line], cwd=cwd, env=self.env, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_file_outside_of_a_repository_is_not_claimed(self):
        for path in ("/nonexistent/x", str(self.room / "x")):
            self.assertIsNone(self.hook("claude-edit", tool_input={"file_path": path}))
        self.assertEqual(self.held(), {})


class Costs(Project):
    """Counted: the time is printed by bench.py."""

    def test_edit_calls_onehold_once_and_what_edits_nothing_does_not(self):
        calls = self.room / "calls"
        program = self.room / "bin" / "onehold"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\necho "$1" >> {calls}\nexec {shutil.which("onehold")} "$@"\n')
        program.chmod(0o755)
        env = {**self.env, "PATH": f"{program.parent}:{os.environ['PATH']}"}
        for recorded in ("bash", "read", "edit", "edit", "subagent-edit"):
            self.assertIsNone(self.hook(f"claude-{recorded}", "--under", "db=psql *", env=env))
        self.denied(self.hook("claude-edit", session_id="s2", env=env))
        self.assertEqual(calls.read_text().split(), ["acquire"] * 4)

    def test_edit_that_is_allowed_imports_no_module_that_takes_longer_than_the_claim(self):
        event = (HERE / "recorded" / "claude-edit.json").read_text().replace("@REPO@", str(self.repo))
        line = [sys.executable, "-IS", "-X", "importtime", str(HOOK), "--ttl", "15m", "--on-error", "closed"]
        done = subprocess.run(line, input=event, env=self.env, capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout, "")
        imported = {text.rpartition("|")[2].strip() for text in done.stderr.splitlines()}
        self.assertIn("os", imported)
        self.assertEqual(imported & {"json", "re", "enum", "shlex", "subprocess", "fnmatch"}, set())

    def test_scanner_reads_what_json_reads_and_refuses_what_it_refuses(self):
        loader = importlib.machinery.SourceFileLoader("onehold_hook", str(HOOK))
        hook = importlib.util.module_from_spec(importlib.util.spec_from_loader("onehold_hook", loader))
        sys.dont_write_bytecode = True
        loader.exec_module(hook)
        for text in ('{"a": [1, -2.5e3, true, null, "\\u00e9\\ud83d\\ude00"]}', ' \n{}\t', '"x"', "[[]]"):
            self.assertEqual(hook.parsed(text), json.loads(text))
        for text in ("", "{", "[1,]", "{} {}", "nul", '{"a" 1}', "'a'", '"\n"'):
            for read in (hook.parsed, json.loads):
                self.assertRaises(ValueError, read, text)
        # A scanner may look at more than this Python's does: at `array_hook` from 3.15 on, later perhaps at others.
        for key, value in (("array_hook", "scanned"), ("of_later", ["json"])):
            of_later = types.SimpleNamespace(make_scanner=scanner_that_looks_at(key))
            with unittest.mock.patch.dict(sys.modules, {"_json": of_later}):
                self.assertEqual(hook.parsed('["json"]'), value)


def scanner_that_looks_at(key):
    def make_scanner(context):
        getattr(context, key)
        return lambda text, _: ("scanned", len(text))

    return make_scanner


class Commands(Project):
    def test_command_of_the_list_is_denied_unless_it_runs_under_its_lock(self):
        under = ("--under", "build=make*")
        self.assertIn("onehold run --project -w 10m build -- make -j8 all", self.denied(self.hook("claude-bash", *under)))
        self.assertEqual(self.hook("gemini-shell", *under)["decision"], "deny")
        run = {"command": "cd src && onehold run --project -w 10m build -- make -j8"}
        self.assertIsNone(self.hook("claude-bash", *under, tool_input=run))
        self.assertIsNone(self.hook("claude-bash", "--under=db=psql *"))

    def test_command_is_seen_wherever_the_shell_would_run_it_and_nowhere_else(self):
        under = ("--under", "build=make", "--under", "build=make *", "--under", "db=psql *")
        runs = (
            "make",
            "ls\nmake",
            "FOO='a b' time -p make x",
            "(cd x; make)",
            "if true; then make; fi",
            "echo $(make)",
            "cat <<E | make x\nhi\nE\n",
            "cat <<'E'\nhi\nE\nmake",
            "echo $((1<<2))\nmake",
            "'make' x 2>&1",
            "onehold run build -- make && make x",
            "onehold run db -- make",
            "onehold run build -- psql x",
        )
        for command in runs:
            self.assertIn("onehold run --project", self.denied(self.hook("claude-bash", *under, tool_input={"command": command})))
        innocent = (
            "cmake x",
            "makepkg",
            "echo 'x; make'",
            "git commit -m 'a\nmake all\n'",
            "cat > f <<-E\n\tmake x\n\tE\n",
            "# make\nls # ; make",
            "echo a\\;make",
            "onehold run build -- time make x | tee y",
            "onehold run build -- onehold run db -- psql x",
        )
        for command in innocent:
            self.assertIsNone(self.hook("claude-bash", *under, tool_input={"command": command}), command)
        reason = self.denied(self.hook("claude-bash", *under, tool_input={"command": "A=1 make x"}))
        self.assertTrue(reason.endswith(": A=1 onehold run --project -w 10m build -- make x"), reason)


class Errors(Project):
    def test_error_allows_or_denies_as_configured_and_says_which(self):
        env = {**self.env, "PATH": "/nonexistent"}
        warning = self.hook("claude-edit", env=env)["systemMessage"]
        self.assertIn("cannot start `onehold`", warning)
        self.assertIn("--on-error open: allowed", warning)
        closed = self.hook("claude-edit", "--on-error", "closed", env=env)
        self.assertIn("--on-error closed: denied", self.denied(closed))
        self.denied(self.hook_on("no object", "--on-error", "closed"))
        # A store that cannot be used.
        (self.repo / ".git" / "onehold").touch()
        self.assertIn("allowed", self.hook("claude-edit")["systemMessage"])
        self.assertEqual(self.hook("gemini-write-file", "--on-error", "closed")["decision"], "deny")

    def test_mistake_in_the_settings_is_said_and_blocks_if_it_was_to_be_closed(self):
        for words, status, says in (
            (["--on-eror", "open"], 1, "unknown option `--on-eror`"),
            (["--on-eror", "closed"], 2, "unknown option `--on-eror`"),
            (["--on-error=closed", "--tll=5m"], 2, "unknown option `--tll=5m`"),
            (["--on-error", "maybe"], 1, "`--on-error` is open or closed, not `maybe`"),
            (["--under", "make"], 1, "`--under` needs NAME=PATTERN, not `make`"),
            (["--ttl"], 1, "`--ttl` needs a value"),
            (["--ttl", "5x"], 1, "`--ttl` needs a duration such as `30s`, `10m` or `2h`, not `5x`"),
        ):
            line = [sys.executable, str(HOOK), *words]
            done = subprocess.run(line, input="{}", capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, status)
            self.assertEqual(done.stderr, f"onehold-hook: {says}; see --help\n")

    def test_help_is_the_text_of_the_head(self):
        done = subprocess.run([sys.executable, str(HOOK), "--help"], capture_output=True, text=True, check=True)
        self.assertIn("onehold-hook [--ttl D]", done.stdout)

    def test_whatever_goes_wrong_is_denied_if_closed(self):
        for text in ("", "[]", "{}", '{"hook_event_name": 1}'):
            reason = self.denied(self.hook_on(text, "--on-error", "closed"))
            self.assertIn("the event is not an object with hook_event_name", reason)
        for changes in (
            {"tool_input": ["x"]},
            {"tool_input": {"file_path": 7}},
            {"tool_input": {"file_path": "a\0b"}},
            {"cwd": "/nonexistent\0"},
        ):
            self.assertIn("closed: denied", self.denied(self.hook("claude-edit", "--on-error", "closed", **changes)))

    def test_conflict_is_denied_by_a_hook_that_is_told_of_no_exit(self):
        self.hook("claude-edit")
        event = (HERE / "recorded" / "claude-edit.json").read_text().replace("@REPO@", str(self.repo))
        event = {**json.loads(event), "session_id": "s2"}
        line = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
        line = [sys.executable, "-c", line, sys.executable, "-IS", str(HOOK)]
        done = subprocess.run(line, input=json.dumps(event), env=self.env, capture_output=True, text=True, check=True)
        self.assertIn("is held by a lease of claude-0b2f", self.denied(json.loads(done.stdout)))

    def test_settings_to_copy_are_accepted(self):
        for settings in SETTINGS:
            hooks = json.loads((HERE.parent / settings).read_text())["hooks"]
            lines = {hook["command"] for event in hooks.values() for rule in event for hook in rule["hooks"]}
            for line in lines:
                line = line.replace("onehold-hook", str(HOOK))
                done = subprocess.run(["sh", "-c", f"echo '{{}}' | {line}"], env=self.env, capture_output=True, check=False)
                self.assertEqual(done.returncode, 0, done.stderr)


class Team(Project):
    def test_three_agents_in_two_worktrees_never_edit_one_file_at_once(self):
        """Each edits every file, and waits for those that others have. An edit is a directory that must not exist.

        Before them, two sessions are killed at work: one has claimed for 2 s, and the agent of the other ends.
        """
        files, edits, overlaps = [f"f{number}" for number in range(4)], [], []
        killed = {"session_id": "killed", "tool_input": {"file_path": str(self.repo / "f0")}}
        self.assertIsNone(self.hook("claude-write", "--ttl", "2s", **killed))
        ends = {"session_id": "ends", "tool_input": {"file_path": str(self.other / "f1")}}
        self.assertIsNone(self.hook("claude-subagent-edit", **ends))
        self.denied(self.hook("claude-write", session_id="agent-0", tool_input=killed["tool_input"]))
        self.hook("claude-subagent-stop", session_id="ends")

        def agent(number):
            tree, session = (self.repo, self.other)[number % 2], f"agent-{number}"
            left = list(files)
            while left:
                for name in list(left):
                    given = {"file_path": str(tree / name)}
                    if self.hook("claude-write", session_id=session, cwd=str(tree), tool_input=given) is not None:
                        continue
                    mark = self.room / f"{name}.edited"
                    try:
                        mark.mkdir()
                    except FileExistsError:
                        overlaps.append((session, name))
                        continue
                    time.sleep(0.01)
                    mark.rmdir()
                    edits.append((session, name))
                    left.remove(name)
                    self.hook("claude-session-end", session_id=session, cwd=str(tree))

        agents = [threading.Thread(target=agent, args=(number,)) for number in range(3)]
        for each in agents:
            each.start()
        for each in agents:
            each.join()
        self.assertEqual(overlaps, [])
        self.assertEqual(len(edits), 3 * len(files))
        self.assertEqual(self.held(), {})


if __name__ == "__main__":
    unittest.main()

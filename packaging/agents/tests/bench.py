"""How long a call of onehold-hook takes beside nothing: prints medians of 100 calls, in milliseconds, and what they start.

Fails if the median is above 15 ms.

    python3 packaging/agents/tests/bench.py

`onehold` is the one on PATH; git is needed, and for the counts strace(1). Run it on a machine that does nothing else.
"""

import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
HOOK = str(HERE.parent / "onehold-hook")
CALLS = 100
MOST = 15


def main():
    with tempfile.TemporaryDirectory() as room:
        subprocess.run(["git", "init", "-q", "repo"], cwd=room, check=True)
        repo = pathlib.Path(room, "repo").resolve()
        event = (HERE / "recorded" / "claude-edit.json").read_text().replace("@REPO@", str(repo))
        env = {**os.environ, "HOME": room}
        env.pop("ONEHOLD_DIR", None)
        lines = {
            "true": ["true"],
            "python3": ["/usr/bin/python3", "-IS", "-c", "pass"],
            "onehold acquire": ["onehold", "acquire", "--path", "b.rs", "--ttl", "10m", "--owner", "o", "--json"],
            "onehold-hook": [HOOK],
        }
        took = {name: [] for name in lines}
        # In turn, so that whatever else happens is spread over all.
        for _ in range(CALLS):
            for name, line in lines.items():
                begun = time.perf_counter()
                subprocess.run(line, input=event, text=True, cwd=repo, env=env, stdout=subprocess.DEVNULL, check=True)
                took[name].append(1000 * (time.perf_counter() - begun))
        nothing = statistics.median(took["true"])
        for name, times in took.items():
            median = statistics.median(times)
            print(f"{name:16} {median:6.2f} ms, {median - nothing:6.2f} beside true, least {min(times):6.2f}")
            if name == "onehold-hook" and median - nothing > MOST:
                sys.exit(f"{name} takes more than {MOST} ms")
        if shutil.which("strace"):
            calls = pathlib.Path(room, "calls")
            traced = ["strace", "-f", "-qq", "-o", str(calls), HOOK]
            subprocess.run(traced, input=event, text=True, cwd=repo, env=env, stdout=subprocess.DEVNULL, check=True)
            seen = calls.read_text().splitlines()
            started = sum("execve" in line and line.endswith("= 0") for line in seen)
            print(f"programs that a call executes: {started}; system calls: {len(seen)}")


if __name__ == "__main__":
    main()

"""The program: where it is, and what a command of it answers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from pathlib import PurePath
from typing import Any, Dict, Iterator, List, Optional, cast

from onehold._options import Name
from onehold.errors import Answer, Error, NotFound

FILE = "onehold" + (sysconfig.get_config_var("EXE") or "")


def _scripts() -> Iterator[str]:
    """Where the wheel of this package may have put the program."""
    yield sysconfig.get_path("scripts")
    # pip install --prefix and --target do not use the scheme of the interpreter.
    package = os.path.dirname(os.path.abspath(__file__))
    site_packages = os.path.dirname(package)
    yield os.path.join(site_packages, "bin")
    # Only of that layout: above another --target there may be a directory to which anybody can write.
    if any(PurePath(site_packages).match(f"lib*/python*/{name}-packages") for name in ("site", "dist")):
        yield os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(site_packages))), "bin")
    yield sysconfig.get_path("scripts", f"{os.name}_user")


def find_program(program: Optional[Name] = None) -> str:
    """The path of the program: that of this package, else the one on PATH."""
    if program is not None:
        return os.fspath(program)
    for directory in _scripts():
        path = os.path.join(directory, FILE)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    path_found = shutil.which(FILE)
    if path_found is None:
        raise NotFound(
            "cannot find the program `onehold`: it is neither beside this Python nor on PATH; "
            "install a wheel that has it inside, or the program"
        )
    return path_found


def not_started(program: str, error: OSError) -> Error:
    kind = NotFound if isinstance(error, FileNotFoundError) else Error
    return kind(f"cannot start `{program}`: {error.strerror}")


def ask(program: Optional[Name], line: List[str]) -> Answer:
    """Runs a command that prints one object, and returns it, of a failure too."""
    path = find_program(program)
    try:
        # A session of its own: Ctrl-C reaches this process, which ends the command in order.
        process = subprocess.Popen(
            [path, *line], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        raise not_started(path, error) from error
    with process:
        try:
            output = process.communicate()[0]
        except BaseException:
            process.terminate()
            raise
    if not output:
        raise Error(f"{line[0]}: `{path}` exited with {process.returncode} without an answer")
    return cast("Dict[str, Any]", json.loads(output))


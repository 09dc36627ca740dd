"""Locks between processes and machines that say who holds them.

with onehold.lock("backup", wait="5m", message="nightly") as hold:
    print(hold.number)

One process, `onehold hold --serve`, holds the locks of this interpreter for as long as it lives.
"""

from onehold._answer import check
from onehold._hold import Hold, Lock, lock, try_lock
from onehold._lease import Lease, acquire
from onehold._program import find_program
from onehold.errors import Error, Locked, Lost, NotFound, TimedOut

__all__ = [
    "Error",
    "Hold",
    "Lease",
    "Lock",
    "Locked",
    "Lost",
    "NotFound",
    "TimedOut",
    "acquire",
    "check",
    "find_program",
    "lock",
    "try_lock",
]

"""Locks between processes and machines that say who holds them.

with onehold.lock("backup", wait="5m", message="nightly") as hold:
    print(hold.number)

Each lock is held by a process of its own, `onehold hold`, for as long as this process keeps a pipe open.
"""

from onehold._hold import Hold, Lock, lock, try_lock
from onehold._lease import Lease, acquire
from onehold._program import check, find_program
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

"""memory/.lock with onehold, under the names of the module that it replaces. It also excludes other threads."""

import contextlib, functools, threading

import onehold

LockError = onehold.Locked


class MemoryLock:
    def __init__(self, workspace_root="."):
        self._store = {"profile": "memory", "directory": workspace_root}
        self._mutex, self._thread, self._holds = threading.Lock(), None, []

    def acquire_blocking(self, operation, max_wait=5.0, break_stale=True):
        options = {"wait": max_wait, "message": operation, "on_zombie": "take" if break_stale else "fail"}
        with contextlib.ExitStack() as hold:
            if self._thread is not threading.current_thread():  # else it acquires once more what it has
                if not self._mutex.acquire(timeout=max_wait):
                    raise LockError("another thread of this process holds the lock")
                hold.callback(self._mutex.release)
                hold.enter_context(onehold.lock(**options, **self._store).acquire())
            self._thread = threading.current_thread()
            self._holds.append(hold.pop_all())

    def acquire_nowait(self, operation, break_stale=True):
        with contextlib.suppress(LockError):
            self.acquire_blocking(operation, 0, break_stale)
            return True
        return False

    def release(self):
        if self._holds:
            self._thread = self._thread if self._holds[1:] else None
            self._holds.pop().close()

    @contextlib.contextmanager
    def acquire(self, operation, max_wait=5.0):
        self.acquire_blocking(operation, max_wait)
        try:
            yield
        finally:
            self.release()

    def status(self):
        details = onehold.check(**self._store)["details"]
        return {**details, "we_hold_it": bool(self._holds)} if details["locked"] else details


get_lock = functools.lru_cache(maxsize=None)(MemoryLock)


def with_lock(operation, max_wait=5.0):
    return get_lock().acquire(operation, max_wait)

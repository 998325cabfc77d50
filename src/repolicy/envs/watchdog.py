"""Report environment calls that hang, and end the process if the user set a timeout.

The caller stores when the call began in `ENV_CALL`, and a thread of the watchdog reads it now and then. There is no
lock: reading a moment late does no harm.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

from repolicy.errors import in_one_sentence

REPORT_AFTER = 60.0  # seconds after which a call is reported


class EnvCall:
    """The environment call that this process is running now; the watchdog reads it."""

    envs = ""
    index: int | None = None  # which environment of the batch, where they are called one by one
    began = 0.0  # 0: no call is under way

    @contextmanager
    def calling(self, envs: str) -> Iterator[None]:
        """Record a call while it runs, and turn what it raises into an error of one sentence."""
        self.envs, self.index, self.began = envs, None, time.monotonic()
        try:
            with in_one_sentence(f"environment {envs!r} failed"):
                yield
        finally:
            self.began = 0.0


ENV_CALL = EnvCall()


class Watchdog:
    """A context that reports long calls on stderr, and ends the process if one takes longer than `env_timeout`."""

    def __init__(self, rank: int, env_timeout: float | None = None, long: float = REPORT_AFTER) -> None:
        self._rank, self._timeout, self._long = rank, env_timeout, long
        self._caller = threading.get_ident()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="repolicy-watchdog")

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        announced = 0.0
        while not self._over.wait(min(1.0, self._long / 5, (self._timeout or self._long) / 5)):
            began = ENV_CALL.began
            seconds = time.monotonic() - began
            if not began:
                continue
            if self._timeout is not None and seconds > self._timeout:
                self._give_up(seconds)
            if seconds > self._long and announced != began:
                announced = began
                _print(f"repolicy: {self._sentence(seconds)}; --env-timeout SECONDS would end the run then")

    def _give_up(self, seconds: float) -> None:
        """End the process: nothing else stops a call that hangs, perhaps in C++ code."""
        sign = "repolicy: " if self._rank == 0 else ""  # the first rank reports the last words of the others
        _print(f"{sign}{self._sentence(seconds)}, which is beyond --env-timeout: ended; --resume goes on")
        if sys.stderr.isatty():
            _print("\x1b[?25h")  # the live display hides the cursor
        os._exit(1)

    def _sentence(self, seconds: float) -> str:
        """Return which call hangs, and the file and line of the calling thread: often the very line that hangs."""
        env = f"environment {ENV_CALL.envs!r}"
        if ENV_CALL.index is not None:
            env = f"environment {ENV_CALL.index} of {ENV_CALL.envs!r}"
        frame: FrameType | None = sys._current_frames().get(self._caller)
        place = f" (at {frame.f_code.co_filename}:{frame.f_lineno})" if frame else ""
        return f"{env} in rank {self._rank} has not come back for {seconds:.0f} seconds{place}"


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

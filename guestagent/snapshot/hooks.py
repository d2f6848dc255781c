"""The site's own programs around a snapshot.

::

    /etc/guestagent/hooks.d/pre-snapshot/   before anything is frozen; in *reverse* order of names
    /etc/guestagent/hooks.d/post-resume/    the source goes on, or the quiesce was given up: after everything is thawed; in order
    /etc/guestagent/hooks.d/post-restore/   a restored VM or branch: before anything is thawed; in order

So ``10-database`` is told last before a snapshot and first after it, and what runs on it never meets it stopped.  Every executable
file counts, but for hidden ones.  A hook gets GUESTAGENT_EVENT (the folder's name), GUESTAGENT_TICKET, and after a snapshot
GUESTAGENT_OUTCOME (resumed, aborted, failed, thawed, restored) and GUESTAGENT_GENERATION.  Its stdin is empty; the beginning and
the end of what it prints are in the report.  One that takes too long is killed with all that it started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from typing import Any

import trio

PRE_SNAPSHOT, POST_RESUME, POST_RESTORE = "pre-snapshot", "post-resume", "post-restore"

OUTPUT_SHOWN = 4096  # bytes of output in the report: its first half and its last
OUTPUT_WAIT = 0.1  # seconds after its end for what it left in the pipe; a daemon that it started may hold that open
HOOKS_SHOWN = 64  # results in a report


class HookFailed(Exception):
    """A hook before the snapshot said no."""


def find(folder: str, event: str) -> list[str]:
    """The executables of an event, in the order in which they run."""
    try:
        entries = list(os.scandir(os.path.join(folder, event)))
    except OSError:
        return []
    paths = [
        entry.path
        for entry in entries
        if not entry.name.startswith(".") and entry.is_file() and os.access(entry.path, os.X_OK)
    ]
    return sorted(paths, reverse=event == PRE_SNAPSHOT)


async def run_all(
    folder: str, event: str, environment: Mapping[str, str], seconds: float, results: list[dict[str, Any]]
) -> None:
    """Run an event's hooks; each adds its result to `results`.

    A failing `pre-snapshot` hook ends it with HookFailed; after a snapshot all run, whatever becomes of them.
    """
    for path in find(folder, event):
        result: dict[str, Any] = {"hook": f"{event}/{os.path.basename(path)}"}
        results.append(result)
        del results[:-HOOKS_SHOWN]
        began = trio.current_time()
        try:
            result.update(await _run(path, event, environment, seconds))
        finally:
            result["seconds"] = round(trio.current_time() - began, 6)
        if event == PRE_SNAPSHOT and result.get("status") != 0:
            raise HookFailed(f"hook {result['hook']} failed: {_cause(result)}")


def _cause(result: dict[str, Any]) -> str:
    if "error" in result:
        return str(result["error"])
    lines = str(result["output"]).strip().splitlines()
    return f"status {result['status']}{': ' + lines[-1] if lines else ''}"


async def _run(path: str, event: str, environment: Mapping[str, str], seconds: float) -> dict[str, Any]:
    output = _Output()
    try:
        process = await trio.lowlevel.open_process(
            [path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            env={**os.environ, **environment, "GUESTAGENT_EVENT": event},
            start_new_session=True,
        )
    except OSError as error:
        return {"status": None, "error": f"cannot start: {error.strerror}", "output": ""}
    assert process.stdout is not None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(output.read, process.stdout)
            with trio.move_on_after(seconds):
                await process.wait()
                with trio.move_on_after(OUTPUT_WAIT):
                    await output.complete.wait()
            nursery.cancel_scope.cancel()
    finally:
        late = process.returncode is None
        if late:
            _kill(process.pid)
            with trio.CancelScope(shield=True):
                await process.wait()  # at once: it was killed
        with trio.CancelScope(shield=True):
            await process.stdout.aclose()
    if late:
        return {"status": None, "error": f"killed after {seconds:g} s", "output": output.text()}
    return {"status": process.returncode, "output": output.text()}


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


class _Output:
    """The beginning and the end of what a hook prints."""

    def __init__(self) -> None:
        self.complete = trio.Event()
        self._head = b""
        self._tail = b""
        self._size = 0

    async def read(self, stream: trio.abc.ReceiveStream) -> None:
        half = OUTPUT_SHOWN // 2
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await stream.receive_some(65536):
                self._size += len(data)
                take = half - len(self._head)
                self._head += data[:take]
                self._tail = (self._tail + data[take:])[-half:]
        self.complete.set()

    def text(self) -> str:
        left_out = self._size - len(self._head) - len(self._tail)
        middle = f"\n[{left_out} bytes left out]\n" if left_out else ""
        return self._head.decode(errors="replace") + middle + self._tail.decode(errors="replace")

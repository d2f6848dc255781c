"""One session inside the server: its streams, its size and its end.  (Its input: session_input.py.)

The keeper owns the process, the descriptors and the histories; this object is what one server process makes of them, and can be
built anew from the keeper's record at any time.  Everything is synchronous; time and other sessions are the hub's.

End of a session::

    RUNNING --(wait status)--> DRAINING --(all output read)--> EXITED: `exit` is in every stream

DRAINING ends when every stream is closed, or when the kernel has nothing more and EXIT_DRAIN seconds have passed: a descendant
that keeps the terminal open does not delay `exit`, whose ``output_closed`` is then false.  Since everything that the process
wrote was in the kernel when it was reaped, and a read that finds nothing has flushed the kernel's buffers, no time is part of the
promise, only of how long we hope to see the end of output as well.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import signal
import struct
import termios
import time
from typing import Any

import msgpack

from guestagent import processes
from guestagent.history import History
from guestagent.screens import GRACE
from guestagent.services import Client, Services
from guestagent.session_input import SessionInput
from guestagent.stream import Attach, SessionStream, StreamState
from ptymux import limits
from ptymux.messages import Input, InputEnd, Skip


class Session:
    """`record` and `fds` are what the keeper handed over (see link.py)."""

    def __init__(self, hub: Services, record: dict[str, Any], fds: dict[str, int]) -> None:
        self.hub = hub
        self.id: str = record["id"]
        self.pid: int = record["pid"]
        self.tty: bool = record["tty"]
        self.group: str | None = record["group"]
        self.started: float = record["started"]
        self.meta: dict[str, Any] = msgpack.unpackb(record["meta"])
        self.status: int | None = None
        self.ended: float | None = None
        self.oom = False
        self.exited = False
        self._closed = False
        self._done_at: float | None = None  # when the last of its output was read
        self.hot_until = 0.0
        self.last_signal: dict[str, Any] | None = None
        self.size_owner: bytes | None = None
        self._size_wanted: tuple[int, int, bytes] | None = None  # while quiesced: what resize will do afterwards
        self.answerer: bytes | None = None  # the client whose terminal answers the program's queries; None: we do
        self.holder_seen = hub.now()
        names = ("stdout",) if self.tty else ("stdout", "stderr")
        self.streams = {
            name: SessionStream(self, name, History(fds[memory]), fds.get("terminal" if self.tty else name))
            for name, memory in zip(names, ("history", "history2"), strict=False)
        }
        self.history = self.streams["stdout"].history
        self.input = SessionInput(hub, self, self.history, fds.get("terminal", fds.get("stdin")), self._claim_by_typing)
        for fd in self.fds():
            os.set_blocking(fd, False)

    # --- facts ------------------------------------------------------------------------------------
    @property
    def name(self) -> str | None:
        name: str | None = self.meta["name"]
        return name

    @property
    def policy(self) -> str:
        policy: str = self.meta["policy"]
        return policy

    @property
    def holder(self) -> bytes | None:
        """The client that a `block` session waits for."""
        holder: bytes | None = self.meta["holder"]
        return holder

    @property
    def lease_runs(self) -> bool:
        if self.policy != "block" or self.holder is None:
            return False
        if self.holder in self.hub.peers:
            self.holder_seen = self.hub.now()
        return self.hub.now() - self.holder_seen < self.hub.config.limits.block_lease

    def fds(self) -> list[int]:
        """Our open descriptors."""
        found = {stream.fd for stream in self.streams.values()} | {self.input.fd}
        return [fd for fd in found if fd is not None]

    def size(self) -> list[int] | None:
        """[columns, rows]; None without a terminal."""
        if not self.tty:
            return None
        fd = self.streams["stdout"].fd
        if fd is None:
            return list(self.meta["size"])
        rows, columns, _, _ = struct.unpack("HHHH", fcntl.ioctl(fd, termios.TIOCGWINSZ, bytes(8)))
        return [columns, rows]

    def update_meta(self, **changes: Any) -> None:
        self.meta.update(changes)
        self.hub.link.send({"op": "meta", "id": self.id, "meta": msgpack.packb(self.meta)})

    # --- beginning --------------------------------------------------------------------------------
    def begin(self) -> None:
        """Start reading; for a session that an earlier server had, say first what its death left uncertain."""
        for stream in self.streams.values():
            if stream.history.recover():
                stream.history.add_mark("gap", {"size": None, "reason": "the server was killed while it was reading"})
                self.hub.stats.uncertain += 1
            if stream.fd is not None:
                self.hub.pump.add(stream.fd, self, stream)
            stream.update_limit()
            stream.following.owner_changed()
        owner = self.history.last_mark("size_owner")
        if owner is not None and owner.data["client"] is not None:
            self.add_mark("size_owner", {"client": None})  # the server that it was attached to is gone
        self.input.recover()
        if not self.tty and self.input.fd is not None:
            self.hub.pump.add(self.input.fd, self, None)
        self.exited = all(stream.history.last_mark("exit") is not None for stream in self.streams.values())

    # --- input ------------------------------------------------------------------------------------
    def on_input(self, peer: Client, frame: Input | Skip | InputEnd) -> None:
        """Take a client's input frame.  ProtocolError if it breaks the stream."""
        self.input.on_frame(peer, frame)

    def write_input(self) -> None:
        """The terminal takes more."""
        self.input.write()

    def answer(self, data: bytes) -> None:
        """Type a terminal's answer to a query."""
        self.input.answer(data)

    # --- size -------------------------------------------------------------------------------------
    def resize(self, columns: int, rows: int, client: bytes) -> None:
        """Set the terminal's size; the client becomes its owner."""
        if self.hub.held:
            self._size_wanted = (columns, rows, client)
            return
        self.size_owner = client
        self._owner_changed()
        stream = self.streams["stdout"]
        if not self.tty or self.size() == [columns, rows]:
            return
        self.meta.setdefault("birth_size", self.meta["size"])
        stream.catch_up()  # what was written for the old size belongs before the mark
        fd = stream.fd
        if fd is None:
            return
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.meta["size"] = [columns, rows]
        self.add_mark("resize", {"columns": columns, "rows": rows})

    def release(self, same: bool) -> None:
        """No longer quiesced.  If it is the `same` VM, what came in meanwhile counts."""
        wanted, self._size_wanted = self._size_wanted, None
        if same and wanted is not None and self.status is None:
            self.resize(*wanted)
        self._owner_changed()
        self.write_input()

    def _owner_changed(self) -> None:
        """Say in the stream who answers queries, if it is somebody else now.  Not while quiesced: no mark may come before a fork."""
        if self.hub.held:
            return
        answerer = self.size_owner
        if not any(attach.answers and attach.peer.client == answerer for attach in self.streams["stdout"].attaches):
            answerer = None
        if answerer != self.answerer:
            self.streams["stdout"].catch_up()  # what was asked before is the former one's
            self.answerer = answerer
            self.add_mark("size_owner", {"client": answerer.hex() if answerer else None})
            for stream in self.streams.values():
                stream.following.owner_changed()

    def _claim_by_typing(self, peer: Client) -> None:
        if self.size_owner == peer.client:
            return
        for attach in self.streams["stdout"].attaches:
            if attach.peer is peer and attach.size is not None and not attach.view:
                self.resize(*attach.size, peer.client)

    # --- attaches ---------------------------------------------------------------------------------
    def attach(self, attach: Attach) -> None:
        attach.stream.attaches.add(attach)
        if attach.peer.client == self.holder:
            attach.stream.history.holder_acked = max(attach.stream.history.holder_acked, attach.acked)
        if attach.size is not None and not attach.view:
            self.resize(*attach.size, attach.peer.client)
        attach.stream.update_limit()

    def detach(self, attach: Attach) -> None:
        attach.stream.attaches.discard(attach)
        if self.size_owner == attach.peer.client:
            self.size_owner = None
            if self.answerer is not None and not self._closed and self.status is None:
                since = self.history.last_mark("size_owner")
                start = since.offset if since is not None else 0  # what was asked before was not its to answer
                self.hub.after(GRACE, functools.partial(self._answer_instead, attach, start))
            self._owner_changed()
        if attach.peer.client == self.holder:
            self.holder_seen = self.hub.now()
        attach.stream.update_limit()

    def _answer_instead(self, former: Attach, start: int) -> None:
        """The owner has lost contact: what it was asked and has not acknowledged, we answer, unless it is back."""
        stream = former.stream
        if not self._closed and all(attach.peer.client != former.peer.client for attach in stream.attaches):
            stream.following.take_over(max(former.acked, start), stream.history.head)

    def add_mark(self, kind: str, data: dict[str, Any]) -> None:
        for stream in self.streams.values():
            stream.history.add_mark(kind, data)
            stream.wake()

    # --- signals and the end ----------------------------------------------------------------------
    def signal(self, number: int, *, everyone: bool, by: bytes) -> int:
        """Send a signal to the terminal's foreground group, or to every process; how many targets took it."""
        self.last_signal = {"signal": number, "client": by.hex(), "at": self.hub.wall()}
        if everyone:
            return processes.signal_all(self.pid, self.group, number, reaped=self.status is not None)
        fd = self.streams["stdout"].fd
        group = self.pid if self.status is None else 0  # a reaped pid may be somebody else's by now
        if self.tty and fd is not None:
            with contextlib.suppress(OSError):
                group = os.tcgetpgrp(fd) or group
        if group == 0:
            return 0
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            return 0
        return 1

    def kill(self, by: bytes) -> int:
        """SIGKILL to everything that the session started."""
        self.last_signal = {"signal": int(signal.SIGKILL), "client": by.hex(), "at": self.hub.wall()}
        return processes.kill_all(self.pid, self.group, reaped=self.status is not None)

    def ended_with(self, status: int, ended: float, *, oom: bool = False) -> None:
        """The process was reaped: drain what the kernel holds, then say `exit`."""
        self.status, self.ended, self.oom = status, ended, oom
        self.input.refuse_queued("exited", "cannot type: the program has ended")
        for stream in self.streams.values():
            stream.drain()
        self.input.close()
        self.stream_changed()
        if self._done_at is None and not self.fds():  # an earlier server came so far
            # By the clock that never jumps: a restored VM's wall clock may be days ahead of what this was written by.
            self._done_at = self.hub.now() - max(0.0, time.monotonic() - self.meta.get("done", time.monotonic()))
        self.hub.after(limits.EXIT_DRAIN, self._say_exit_late)

    def stream_changed(self) -> None:
        """A stream was closed, or the process ended: is it time for the last marks?"""
        if self.status is None:
            return
        if all(stream.state is StreamState.CLOSED for stream in self.streams.values()):
            if not self.exited:
                self._say_exit(output_closed=True)
            self._say_output_closed()
            if self.fds():
                self._release_terminal()

    def _say_exit_late(self) -> None:
        """EXIT_DRAIN has passed: `exit` if all is read, else as soon as it is."""
        if self.exited or self._closed:
            return
        if all(stream.state is StreamState.CLOSED or stream.drained for stream in self.streams.values()):
            self._say_exit(output_closed=False)
        else:
            self.hub.after(limits.EXIT_DRAIN, self._say_exit_late)

    def _say_exit(self, *, output_closed: bool) -> None:
        assert self.status is not None
        self.exited = True
        code = os.waitstatus_to_exitcode(self.status)
        end: dict[str, Any] = {"code": code} if code >= 0 else {"signal": -code, "core": os.WCOREDUMP(self.status)}
        if code < 0 and self.last_signal is not None and self.last_signal["signal"] == -code:
            end["by"] = self.last_signal
        if self.oom:
            end["oom"] = True
        for stream in self.streams.values():
            if stream.history.last_mark("exit") is None:  # a killed server may have said it in one of two streams
                stream.history.add_mark(
                    "exit",
                    {**end, "offset": stream.history.head, "output_closed": output_closed, "ended": self.ended},
                )
                stream.wake()
        self.hub.flush()

    def _say_output_closed(self) -> None:
        """Where `exit` could not say it; once, whatever a killed server had come to."""
        for stream in self.streams.values():
            end = stream.history.last_mark("exit")
            if end is not None and not end.data["output_closed"] and stream.history.last_mark("output_closed") is None:
                stream.history.add_mark("output_closed", {})
                stream.wake()

    def _release_terminal(self) -> None:
        """No descriptor is kept for a session that is only data now."""
        for fd in self.fds():
            self.hub.pump.remove(fd)
            os.close(fd)
        for stream in self.streams.values():
            stream.fd = None
        self.input.fd = None
        self.hub.pump.cool(self)
        self.hub.link.send({"op": "release", "id": self.id, "all": False})
        self.update_meta(done=time.monotonic())
        self._done_at = self.hub.now()

    def expired(self, now: float) -> bool:
        """Ended, read to the end of its output, and kept long enough since (by the clock that never jumps)."""
        return self._done_at is not None and now - self._done_at >= self.hub.config.limits.retention

    def close(self, *, kill: bool) -> None:
        """Forget the session here and in the keeper, which with `kill` kills what is left of it."""
        self._closed = True
        for stream in self.streams.values():
            for attach in list(stream.attaches):
                attach.peer.end_attach(attach, "removed", "the session was removed")
        self.input.refuse_queued("not_found", "cannot type: the session was removed")
        for fd in self.fds():
            self.hub.pump.remove(fd)
            os.close(fd)
        for stream in self.streams.values():
            stream.fd = None
        self.input.fd = None
        self.hub.pump.cool(self)
        for stream in self.streams.values():
            self.hub.screens.forget(stream.following)
            stream.gone = True
            stream.history.close()
        self.hub.link.send({"op": "release", "id": self.id, "all": True, "kill": kill})

"""The keeper's process: one poll loop over the link to the server and the signals.

States of the server process::

    STARTING --(ready)--> RUNNING --(dies)--> STARTING     at once; slower and slower if it dies young again and again
    STARTING --(dies before the very first ready)--> the keeper ends with its status (a usage or configuration error)
    any      --(ENDING)--> STOPPING: the server says goodbye, sessions are hung up, then killed, and all is removed

ENDING is a SIGTERM or SIGINT, and for process 1 (see guestagent/init) also a SIGPWR or the server's word.

A server waits for our `hello` before it does anything but import.  So the spare, if the configuration wants one, is simply a server
that was started and not yet told::

    none --(a server that wants one is ready)--> WAITING --(the server dies)--> it is the server, STARTING
    WAITING --(it dies, the server is upgraded, ENDING)--> none, and what is left of it is killed

Owns: children, masters, histories, exit records, the answers and blobs that the server stores here.  Decides nothing about
clients.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import select
import signal
import socket
import sys
import time
from collections import deque
from typing import Any

import msgpack

from guestagent import cgroups, link, processes
from guestagent.keeper.records import Record
from guestagent.keeper.spawn import SpawnFailed, spawn
from guestagent.notify import notify

PR_SET_CHILD_SUBREAPER = 36
REMEMBERED_MAX = (
    1024  # answers kept for the next server; a client retries within a minute, not after a thousand requests
)
YOUNG = 2.0  # seconds; a server that dies younger may be in a loop of crashes
PAUSE_MAX = 1.0  # seconds between restarts of a server that never gets ready: clients give up after 30
PAUSE_READY = 0.25  # and of one that does, and dies young again and again
PATIENT_DEATHS = 5  # so many young deaths in a row are restarted at once
HANGUP_TIME = 1.0  # what sessions get between SIGHUP and SIGKILL when the agent stops
FROZEN = "snapshot/frozen"  # store: the filesystems that the server may have frozen; see snapshot/steps.py
GROUPS = "snapshot/groups"  # store: and the cgroups beside the sessions'
FITHAW = 0xC0045878
GOODBYE_TIME = 2.0  # what the server gets to close its connections


class Keeper:
    def __init__(self, server_argv: list[str], *, is_init: bool = False) -> None:
        self.ended_by: int | None = None  # the signal that told us to stop; SIGPWR if the server did
        self._server_argv = server_argv
        self._is_init = is_init
        self._records: dict[str, Record] = {}
        self._by_pid: dict[int, Record] = {}
        self._store: dict[str, bytes] = {}
        self._remembered: deque[bytes] = deque(maxlen=REMEMBERED_MAX)
        self._link: socket.socket | None = None
        self._old_groups: list[str] = []  # of forgotten sessions, with processes in them when we last looked
        self._outbox: deque[tuple[bytes, list[int]]] = deque()
        self._server_pid = 0
        self._spare: tuple[int, socket.socket] | None = None  # pid, and our end of its link
        self._server_started = 0.0
        self._server_status = 0
        self._was_ready = False  # any server was
        self._is_ready = False  # the present one is
        self._paths: list[str] = []  # sockets to remove at the end
        self._deaths = 0
        self._restarts = 0
        self._restart_at: float | None = None
        self._stopping = False
        self._files_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._poll = select.poll()

    def run(self) -> int:
        """Until told to stop; the exit status for the process."""
        # Two descriptors a session; children get the limit that we were started with.
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._files_limit[1], self._files_limit[1]))
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._group_root, self._no_groups = cgroups.find_root(os.getpid())
        if self._group_root is not None:
            cgroups.count_memory(self._group_root)
        wake, signals = socket.socketpair()
        for end in (wake, signals):
            end.setblocking(False)
        signal.set_wakeup_fd(signals.fileno(), warn_on_full_buffer=False)
        self._ending = {signal.SIGTERM, signal.SIGINT} | ({signal.SIGPWR} if self._is_init else set())
        for number in self._ending | {signal.SIGCHLD}:
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._poll.register(wake, select.POLLIN)
        try:
            self._start_server()
            while not self._stopping:
                self._turn(wake)
                if self._server_pid == 0 and not self._was_ready:
                    return os.waitstatus_to_exitcode(self._server_status)
            return 0
        finally:
            self._stop(wake)
            signal.set_wakeup_fd(-1)  # process 1 goes on after us, and the number will be something else's

    # --- the loop ---------------------------------------------------------------------------------
    def _turn(self, wake: socket.socket, most: float | None = None) -> None:
        timeout = most
        if self._restart_at is not None:
            timeout = max(0.0, self._restart_at - time.monotonic())
        for fd, events in self._poll.poll(None if timeout is None else timeout * 1000):
            if fd == wake.fileno():
                with contextlib.suppress(BlockingIOError):
                    for number in self._ending & set(wake.recv(4096)):
                        self._end(number)
            elif self._link is not None and fd == self._link.fileno():
                self._on_link(events)
        if self._reap() and self._old_groups:
            self._remove_groups()
        if self._restart_at is not None and time.monotonic() >= self._restart_at and not self._stopping:
            self._restart_server()

    def _on_link(self, events: int) -> None:
        assert self._link is not None
        if events & select.POLLOUT:
            self._flush()
        try:
            while self._link is not None:
                message, fds = link.receive(self._link)
                for fd in fds:
                    os.close(fd)  # the server has nothing to give us
                self._dispatch(message)
        except BlockingIOError:
            pass
        except link.LinkClosed:
            self._drop_link()

    def _dispatch(self, message: dict[str, Any]) -> None:
        op = message["op"]
        record = self._records.get(message.get("id", ""))
        if op == "spawn":
            self._spawn(message)
        elif op == "release" and record is not None:
            record.child.close(message.get("only"))
            if message["all"]:
                del self._records[record.id]
                self._forget(record, kill=message["kill"])
        elif op == "meta" and record is not None:
            record.meta = message["meta"]
        elif op == "lend":
            fd = None if record is None else record.histories.get("history")
            if fd is None:
                self._send({"op": "failed", "n": message["n"], "code": "not_found", "message": "no such session"})
            else:
                self._send({"op": "lent", "n": message["n"]}, [fd])
        elif op == "store":
            if message["value"] is None:
                self._store.pop(message["key"], None)
            else:
                self._store[message["key"]] = message["value"]
        elif op == "remember":
            self._remembered.append(message["entry"])
        elif op == "poweroff" and self._is_init:
            self._end(signal.SIGPWR)
        elif op == "ready":
            self._was_ready = self._is_ready = True
            self._paths = message["paths"]
            notify(f"READY=1\nSTATUS={message['text']}")
            if message.get("spare") and self._spare is None and not self._stopping:
                self._start_spare()

    def _end(self, number: int) -> None:
        self._stopping = True
        self.ended_by = self.ended_by or number

    # --- sessions ---------------------------------------------------------------------------------
    def _spawn(self, message: dict[str, Any]) -> None:
        try:
            record = self._new_record(message)
        except SpawnFailed as error:
            self._send({"op": "failed", "n": message["n"], "code": error.code, "message": str(error)})
        except OSError as error:
            text = f"cannot start session: {error.strerror}"
            self._send({"op": "failed", "n": message["n"], "code": "os", "message": text})
        else:
            self._records[record.id] = self._by_pid[record.child.pid] = record
            body, fds = record.to_wire()
            self._send({"op": "spawned", "n": message["n"], "record": body}, fds)

    def _new_record(self, message: dict[str, Any]) -> Record:
        group = None
        histories: dict[str, int] = {}
        try:
            if self._group_root is not None:
                group = f"{self._group_root}/{message['id']}"
                os.mkdir(group)
            for name, size in zip(("history", "history2"), message["memory"], strict=False):
                histories[name] = os.memfd_create("guestagent-history", os.MFD_CLOEXEC)
                os.ftruncate(histories[name], size)
            child = spawn(message, group, self._files_limit)
        except BaseException:
            for fd in histories.values():
                os.close(fd)
            if group is not None:
                self._old_groups.append(group)  # the child that failed may still be in it
                self._remove_groups()
            raise
        return Record(message["id"], child, message["tty"], group, message["meta"], time.time(), histories)

    def _reap(self) -> bool:
        """Take the wait status of every child and orphan that ended; True if there were any."""
        some = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return some
            if pid == 0:
                return some
            some = True
            if pid == self._server_pid:
                self._server_died(status)
            elif self._spare is not None and pid == self._spare[0]:
                self._spare[1].close()
                self._spare = None
                self._say(f"the spare server died ({_cause(os.waitstatus_to_exitcode(status))})")
            record = self._by_pid.pop(pid, None)
            if record is not None:
                record.status, record.ended = status, time.time()
                record.oom = record.group is not None and cgroups.oom_killed(record.group)
                if record.id in self._records:
                    fields = {"status": status, "ended": record.ended, "oom": record.oom}
                    self._send({"op": "exited", "id": record.id, **fields})

    def _forget(self, record: Record, *, kill: bool) -> None:
        """Close what we hold of a session, and with `kill` leave no process of it.

        Without, what it left running in the background lives on, hung up like under any terminal that closes.
        """
        if kill:
            processes.kill_all(record.child.pid, record.group, reaped=record.status is not None)
        record.close()
        if record.group is not None:
            self._old_groups.append(record.group)
            self._remove_groups()

    def _remove_groups(self) -> None:
        """Remove the groups of forgotten sessions that are empty by now (the kernel empties a killed one a moment later)."""
        for group in self._old_groups:
            cgroups.remove_tree(group)
        self._old_groups = [group for group in self._old_groups if os.path.exists(group)]

    # --- the server -------------------------------------------------------------------------------
    def _launch(self, *, bytecode: bool) -> tuple[int, socket.socket]:
        """Start a server process: its pid and our end of the link to it.  OSError if there is no room for either."""
        ours, theirs = link.pair()
        environment = {key: value for key, value in os.environ.items() if key != "NOTIFY_SOCKET"}
        if not bytecode:
            environment["PYTHONDONTWRITEBYTECODE"] = "1"
        try:
            pid = os.posix_spawn(
                sys.executable,
                self._server_argv,
                environment,
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), 3)],
                setsigdef=[signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP],
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        return pid, ours

    def _start_spare(self) -> None:
        # What it imports later must not be written: that may be when a filesystem is frozen.
        try:
            self._spare = self._launch(bytecode=False)
        except OSError as error:
            self._say(f"cannot start a spare server: {error.strerror}")

    def _drop_spare(self) -> None:
        """Its end is nobody's business: `_reap` takes its status like an orphan's."""
        if self._spare is not None:
            pid, ours = self._spare
            self._spare = None
            ours.close()
            os.kill(pid, signal.SIGKILL)

    def _restart_server(self) -> None:
        """Not to be given up: without processes or descriptors for a while, the sessions wait for a server."""
        self._restart_at = None
        try:
            self._start_server()
        except OSError as error:
            self._say(f"cannot start the server: {error.strerror}; trying again")
            self._restart_at = time.monotonic() + PAUSE_MAX

    def _start_server(self) -> None:
        """Start the server, or let the spare be it, and tell it all there is."""
        self._server_pid, self._link = self._spare or self._launch(bytecode=FROZEN not in self._store)
        self._spare = None
        self._server_started = time.monotonic()
        self._is_ready = False
        self._poll.register(self._link, select.POLLIN)
        self._send(
            {
                "op": "hello",
                "store": {key: value for key, value in self._store.items() if "/" not in key},
                "cgroups": self._group_root,
                "why": self._no_groups,
                "init": self._is_init,
                "restarts": self._restarts,
            }
        )
        for key, value in self._store.items():
            if "/" in key:
                self._send({"op": "stored", "key": key, "value": value})
        for entry in self._remembered:
            self._send({"op": "remembered", "entry": entry})
        for record in self._records.values():
            body, fds = record.to_wire()
            self._send({"op": "session", "record": body}, fds)
        self._send({"op": "adopted"})

    def _server_died(self, status: int) -> None:
        self._server_pid = 0
        self._server_status = status
        if self._link is not None:
            self._on_link(0)  # what it sent before it died counts
        self._drop_link()
        if self._stopping or not self._was_ready:
            return
        self._restarts += 1
        code = os.waitstatus_to_exitcode(status)
        young = time.monotonic() - self._server_started < YOUNG
        self._deaths = self._deaths + 1 if young and code != 0 else 0
        pause = 0.0
        if self._deaths > PATIENT_DEATHS:
            pause = PAUSE_READY if self._is_ready else min(PAUSE_MAX, 0.05 * 2 ** (self._deaths - PATIENT_DEATHS))
        if code != 0:
            self._say(f"the server died ({_cause(code)}); restarting it")
        else:  # an upgrade: the spare is of the old code
            self._drop_spare()
        self._restart_at = time.monotonic() + pause

    def _say(self, text: str) -> None:
        """A line in the log, unless that may be on a filesystem that is frozen: whoever writes there sleeps until the thaw."""
        if FROZEN not in self._store:
            print(f"guestagent: {text}", file=sys.stderr, flush=True)

    def _send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        """Queue for the server; what it does not get, the next one learns from the records."""
        if self._link is not None:
            self._outbox.append((link.encode(message), fds or []))
            self._flush()

    def _flush(self) -> None:
        try:
            while self._outbox and self._link is not None:
                link.send(self._link, *self._outbox[0])
                self._outbox.popleft()
        except BlockingIOError:
            pass
        except link.LinkClosed:
            self._outbox.clear()  # it is dead, but what it sent before counts: `_on_link` reads that and then drops the link
        if self._link is not None:
            self._poll.modify(self._link, select.POLLIN | (select.POLLOUT if self._outbox else 0))

    def _drop_link(self) -> None:
        self._outbox.clear()
        if self._link is not None:
            self._poll.unregister(self._link)
            self._link.close()
            self._link = None

    # --- the end ----------------------------------------------------------------------------------
    def _stop(self, wake: socket.socket) -> None:
        self._stopping = True
        self._drop_spare()
        notify("STOPPING=1")
        self._send({"op": "stopping"})
        self._wait(wake, GOODBYE_TIME, lambda: self._server_pid == 0)
        if self._server_pid:
            os.kill(self._server_pid, signal.SIGKILL)
        self._drop_link()  # what waits in the outbox names descriptors that will be closed
        self._thaw()
        for record in self._records.values():
            # A hang-up is what a closing terminal sends; stopped jobs must run to see it.
            for number in (signal.SIGHUP, signal.SIGCONT):
                processes.signal_all(record.child.pid, record.group, number, reaped=record.status is not None)
            record.child.close()
        self._wait(wake, HANGUP_TIME, lambda: not any(map(self._alive, self._records.values())))
        for record in self._records.values():
            self._forget(record, kill=True)
        for group in self._old_groups:
            cgroups.kill(group)
        self._wait(wake, HANGUP_TIME, lambda: not (self._by_pid or self._server_pid or self._old_groups))
        if self._group_root is not None:
            cgroups.remove_tree(self._group_root)
        for path in self._paths:
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _thaw(self) -> None:
        """Leave nothing frozen for a snapshot: neither filesystems nor, so that they can end decently, the sessions."""
        if FROZEN in self._store:
            for path in reversed(msgpack.unpackb(self._store[FROZEN])):
                with contextlib.suppress(OSError):
                    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                    try:
                        fcntl.ioctl(fd, FITHAW, 0)
                    finally:
                        os.close(fd)
            del self._store[FROZEN]
        groups = msgpack.unpackb(self._store.get(GROUPS, b"\x90"))  # an empty list
        for group in [*(record.group for record in self._records.values()), *self._old_groups, *groups]:
            if group is not None:
                with contextlib.suppress(OSError), open(f"{group}/cgroup.freeze", "w") as file:
                    file.write("0")

    def _alive(self, record: Record) -> bool:
        return bool(processes.members(record.child.pid, record.group, reaped=record.status is not None))

    def _wait(self, wake: socket.socket, most: float, done: Any) -> None:
        deadline = time.monotonic() + most
        while not done() and time.monotonic() < deadline:
            self._turn(wake, 0.02)


def _cause(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"status {code}"

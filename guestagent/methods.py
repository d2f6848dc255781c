"""What clients can ask for: one table from method to handler, needed role, and whether a retry must find the first answer.

A handler gets the peer and its parameters and returns the result, or raises RequestFailed.  Handlers that wait for the keeper
are async and run in the server's own nursery: a request goes on when the connection that asked is cut.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgpack

from guestagent import flow, history, reports
from guestagent.access import allows
from guestagent.hub import Hub
from guestagent.params import Params, bad, check_size, limit, signal_number, texts
from guestagent.peer import Peer
from guestagent.session import Session
from guestagent.snapshot.requests import SnapshotRequests
from guestagent.stream import Attach
from ptymux import limits
from ptymux.cursor import BEGINNINGS, REPAIRS, Cursor, resolve
from ptymux.errors import ProtocolError, RequestFailed
from ptymux.messages import Request
from ptymux.output import OutputSender
from ptymux.requests import Answer, Remembered

log = logging.getLogger("guestagent.methods")

Result = dict[str, Any]

ERROR_SHOWN = 1000  # characters of an error text: it is remembered, and handed to the next server
SCREEN_LINES = 1000  # of scrollback in one answer of `screen`; of wide lines in many colours fewer come, which it says
ARGV_SHOWN = 4096  # characters of a command line that are kept to be looked at


class Method(NamedTuple):
    handler: Callable[..., Result | Awaitable[Result]]
    role: str
    keyed: bool  # a retry with the same key gets the first answer, also from the next server process
    once: bool = (
        False  # and rather no certain answer than that it is done again, should this process be killed in the middle
    )


class Methods:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._creating: list[str | None] = []  # names of the sessions that the keeper was asked for
        snapshots = SnapshotRequests(hub)
        self.table: dict[str, Method] = {
            "info": Method(self._info, "viewer", False),
            "stats": Method(self._stats, "viewer", False),
            "list": Method(self._list, "viewer", False),
            "inspect": Method(self._inspect, "viewer", False),
            "screen": Method(self._screen, "viewer", False),
            "attach": Method(self._attach, "viewer", False),
            "detach": Method(self._detach, "viewer", False),
            "resize": Method(self._resize, "controller", True),
            "signal": Method(self._signal, "controller", True, once=True),
            "create": Method(self._create, "admin", True),
            "label": Method(self._label, "admin", True),
            "kill": Method(self._kill, "admin", True),
            "remove": Method(self._remove, "admin", True),
            "upgrade": Method(self._upgrade, "admin", False),
            "poweroff": Method(self._poweroff, "admin", False),
            # A retry of these is known by its ticket.
            "snapshot_prepare": Method(snapshots.prepare, "admin", False),
            "snapshot_resume": Method(snapshots.resume, "admin", False),
            "snapshot_abort": Method(snapshots.abort, "admin", False),
            "snapshot_restore": Method(snapshots.restore, "admin", False),
            "snapshot_status": Method(snapshots.status, "admin", False),
        }

    # --- carrying out -----------------------------------------------------------------------------
    def begin(self, peer: Peer, request: Request) -> None:
        """Carry a request out, or find that this was done before; the answer goes to the peer."""

        def deliver(answer: Answer) -> None:
            kind, value = answer
            if kind == "ok":
                peer.answer(request.id, value)
            else:
                peer.refuse(request.id, *value)

        method = self.table.get(request.method)
        if method is None:
            deliver(("error", ("unknown_method", f"there is no method {request.method}", {})))
            return
        if not allows(peer.role, method.role):
            text = f"cannot {request.method}: the role is {peer.role}, {method.role} is needed"
            deliver(("error", ("forbidden", text, {})))
            return
        quiesced = self._hub.lifecycle.refuses(request.method)
        if quiesced and not (request.key is not None and self._hub.replies.knows(peer.client, request.key)):
            deliver(("error", ("quiescing", f"cannot {request.method}: {quiesced}", {})))
            return
        entry: Remembered | None = None
        if method.keyed and request.key is not None:
            entry, new = self._hub.replies.begin(peer.client, request.key)
            if not new:
                if entry.answer is not None:
                    deliver(entry.answer)
                else:
                    entry.waiters.append(deliver)
                return
        settle = deliver if entry is None else self._settler(peer.client, request, entry, deliver)
        if method.once and request.key is not None:
            text = f"cannot say whether {request.method} was carried out: the server was killed in the middle of it"
            self._hub.remember(peer.client, request.key, ("error", ("uncertain", text, {})))  # until there is an answer
        self._run(method, peer, request, settle)

    def _settler(
        self, client: bytes, request: Request, entry: Remembered, deliver: Callable[[Answer], None]
    ) -> Callable[[Answer], None]:
        def settle(answer: Answer) -> None:
            if request.method != "create":  # the keeper's record of the session says as much
                self._hub.remember(client, request.key or b"", answer)
            deliver(answer)
            entry.settle(answer)

        return settle

    def _run(self, method: Method, peer: Peer, request: Request, settle: Callable[[Answer], None]) -> None:
        try:
            result = method.handler(peer, Params(request.params), request)
        except Exception as error:  # noqa: BLE001 - see _failed
            settle(_failed(request, error))
            return
        if not inspect.isawaitable(result):
            settle(("ok", result))
            return

        async def finish() -> None:
            try:
                answer: Answer = ("ok", await result)
            except Exception as error:  # noqa: BLE001 - see _failed
                answer = _failed(request, error)
            settle(answer)
            self._hub.flush()

        self._hub.start(finish)

    def _session(self, params: Params) -> Session:
        name = params.need("session", str)
        session = self._hub.find(name)
        if session is None:
            raise RequestFailed("not_found", f"no session {name[: limits.MAX_NAME]!r}")
        return session

    # --- looking ----------------------------------------------------------------------------------
    def _info(self, peer: Peer, params: Params, request: Request) -> Result:
        return {**reports.info(self._hub), "role": peer.role}

    def _stats(self, peer: Peer, params: Params, request: Request) -> Result:
        return reports.stats(self._hub)

    def _list(self, peer: Peer, params: Params, request: Request) -> Result:
        return reports.page(self._hub, params.get("after", str, ""))

    def _inspect(self, peer: Peer, params: Params, request: Request) -> Result:
        return reports.inspect(self._session(params))

    async def _screen(self, peer: Peer, params: Params, request: Request) -> Result:
        session = self._session(params)
        if not session.tty:
            raise RequestFailed("state", "the session has no terminal")
        start = params.between("start", 0, 1 << 32, 0)
        count = params.between("count", 0, SCREEN_LINES, 0)
        return await self._hub.screens.screen(session.streams["stdout"].following, start, count)

    # --- attaching --------------------------------------------------------------------------------
    def _attach(self, peer: Peer, params: Params, request: Request) -> Result:
        session = self._session(params)
        stream = session.streams.get(params.get("stream", str, "stdout"))
        if stream is None:
            raise bad(f"stream must be one of {', '.join(session.streams)}")
        channel = params.between("channel", 0, 0xFFFFFFFF, 0)
        if channel in peer.attaches:
            raise bad(f"channel {channel} is in use")
        if len(peer.attaches) >= limits.MAX_ATTACHES:
            raise limit(f"{limits.MAX_ATTACHES} attaches on this connection", "max_attaches", limits.MAX_ATTACHES)
        try:
            cursor = Cursor.from_wire(params.raw("cursor"))
        except ProtocolError as error:
            raise bad(str(error)) from None
        hub = self._hub
        repair = params.choice("repair", REPAIRS, "snapshot")
        start = resolve(
            cursor,
            stream.history,
            stream=stream.key,
            generation=hub.generation,
            lineage=hub.lineage,
            repair=repair,
            pictures=session.tty,
            begin=params.choice("begin", BEGINNINGS, "history"),
        )
        if cursor is not None and not start.discontinuities:
            hub.stats.resumes += 1
        window = params.between("window", 1, limits.MAX_WINDOW, limits.DEFAULT_WINDOW)
        attach = Attach(
            peer,
            stream,
            OutputSender(
                channel,
                stream.history,
                start,
                repair=repair,
                window=window,
                backlog=params.between("backlog", 0, window, 0),
                pictures=session.tty,
                owner=stream.history.owner,
            ),
            view=params.get("view", bool, False) or not allows(peer.role, "controller"),
            size=params.size("size"),
            answers=params.get("answers", bool, False),
            now=hub.now(),
        )
        taken = min(stream.history.taken, stream.history.head)
        peer.add_attach(attach)
        return {
            "session": session.id,
            "generation": hub.generation,
            "offset": start.position.offset,
            "mark": start.position.mark,
            "replay_to": max(start.replay_to, taken if taken > start.position.offset else 0),
            "owner": stream.history.owner(start.position.mark),
            "head": stream.history.head,
            "view": attach.view,
            "tty": session.tty,
            "size": session.size(),
        }

    def _detach(self, peer: Peer, params: Params, request: Request) -> Result:
        attach = peer.attaches.get(params.need("channel", int))
        if attach is not None:
            peer.remove_attach(attach)
        return {}

    # --- changing ---------------------------------------------------------------------------------
    async def _create(self, peer: Peer, params: Params, request: Request) -> Result:
        hub = self._hub
        config = hub.config
        tty = params.get("tty", bool, True)
        argv = texts("argv", params.get("argv", list, []))
        env = params.get("env", dict, {})
        texts("env", [*env.keys(), *env.values()])
        term = params.text("term", 64) or config.sessions.term
        environment = {**({"TERM": term} if tty else {}), **config.sessions.env, **hub.environment, **env}
        if sum(len(text.encode()) + 1 for text in [*argv, *environment, *environment.values()]) > limits.MAX_ARGV:
            raise limit(f"argv and env take more than {limits.MAX_ARGV} bytes", "max_argv", limits.MAX_ARGV)
        name = params.text("name", limits.MAX_NAME)
        if name is not None and not name.isprintable():
            raise bad("name must be printable: it is shown in lists")
        if name is not None and (name in self._creating or hub.find(name) is not None):
            raise RequestFailed("exists", f"there is a session {name!r}")
        most = config.limits.max_sessions
        if len(hub.sessions) + len(self._creating) >= most:
            raise limit(f"{most} sessions are there", "max_sessions", most)
        policy = params.choice("policy", flow.POLICIES, "hold")
        ring = params.between("history", limits.MIN_HISTORY, config.limits.max_history, config.limits.default_history)
        size = params.size("size") or (80, 24)
        session_id = os.urandom(8).hex()
        meta = {
            "name": name,
            "label": params.text("label", limits.MAX_LABEL) or "",
            "argv": _shown(argv),
            "cwd": params.text("cwd", 4096) or config.sessions.cwd,
            "user": params.text("user", 256) or config.sessions.user,
            "policy": policy,
            "size": list(size),
            "holder": peer.client if policy == "block" else None,
            "creator": [peer.client, request.key],
        }
        memory = history.memory_size(ring)
        self._creating.append(name)
        try:
            await hub.keeper.spawn(
                {
                    "id": session_id,
                    "argv": argv,
                    "env": {**environment, "GUESTAGENT_SESSION": session_id},
                    "cwd": meta["cwd"],
                    "user": meta["user"],
                    "size": list(size),
                    "tty": tty,
                    "memory": [memory] if tty else [memory, memory],
                    "meta": msgpack.packb(meta),
                },
                hub.adopt,
            )
        finally:
            self._creating.remove(name)
        hub.stats.sessions_total += 1
        return {"id": session_id}

    def _resize(self, peer: Peer, params: Params, request: Request) -> Result:
        session = self._session(params)
        columns, rows = check_size(params.raw("columns"), params.raw("rows"))
        if session.status is not None:
            raise RequestFailed("exited", "the program has ended")
        if not session.tty:
            raise RequestFailed("state", "the session has no terminal")
        for attach in session.streams["stdout"].attaches:
            if attach.peer is peer and not attach.view:
                attach.size = (columns, rows)
        session.resize(columns, rows, peer.client)
        return {"columns": columns, "rows": rows}

    def _signal(self, peer: Peer, params: Params, request: Request) -> Result:
        session = self._session(params)
        number = signal_number(params.raw("signal"))
        everyone = params.choice("to", ("foreground", "session"), "foreground") == "session"
        count = session.signal(number, everyone=everyone, by=peer.client)
        if count == 0:
            raise RequestFailed("exited", "there is no process to take it")
        return {"sent": count}

    def _label(self, peer: Peer, params: Params, request: Request) -> Result:
        session = self._session(params)
        session.update_meta(label=params.text("label", limits.MAX_LABEL) or "")
        return {}

    def _kill(self, peer: Peer, params: Params, request: Request) -> Result:
        return {"killed": self._session(params).kill(peer.client)}

    def _remove(self, peer: Peer, params: Params, request: Request) -> Result:
        session = self._session(params)
        force = params.get("force", bool, False)
        if session.status is None and not force:
            raise RequestFailed("running", "the program is still running; kill it, or force")
        self._hub.remove(session, kill=force)
        return {}

    def _upgrade(self, peer: Peer, params: Params, request: Request) -> Result:
        self._hub.after(0, self._hub.stop)
        return {"server_pid": os.getpid()}

    def _poweroff(self, peer: Peer, params: Params, request: Request) -> Result:
        if not self._hub.is_init:
            raise RequestFailed(
                "state", "the agent is not this machine's init; ask that, or end the machine from outside"
            )
        self._hub.after(0, lambda: self._hub.link.send({"op": "poweroff"}))  # the answer goes first
        return {}


def _failed(request: Request, error: Exception) -> Answer:
    """The answer for a request that raised.  One request's bug is logged and ends neither the connection nor the server."""
    code, text, details = "internal", "a bug in the agent; its log has more", {}
    if isinstance(error, RequestFailed):
        code, text, details = error.code, str(error), error.details
    elif isinstance(error, OSError):
        code, text = "os", error.strerror or str(error)
    else:
        log.error("%s failed", request.method, exc_info=error)
    return "error", (code, f"cannot {request.method}: {text}"[:ERROR_SHOWN], details)


def _shown(argv: list[str]) -> list[str]:
    """As much of a command line as is worth keeping; a text that is cut ends with an ellipsis."""
    shown: list[str] = []
    left = ARGV_SHOWN
    for text in argv:
        if len(text) > left:
            shown.append(f"{text[:left]}…")
            break
        shown.append(text)
        left -= len(text) + 1
    return shown

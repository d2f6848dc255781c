"""The server's state: sessions, connections, identity.  Everything meets here; the I/O is elsewhere.

Owns the session objects and the table of connected clients.  All methods are synchronous unless they wait for the keeper, and
run in the one trio thread, so nothing here is ever half done when something else looks.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import trio

from guestagent import access
from guestagent.config import Config
from guestagent.keeper_link import KeeperLink
from guestagent.listeners import Peer as Origin
from guestagent.services import Client, Services
from guestagent.session import Session
from guestagent.snapshot.lifecycle import Lifecycle
from guestagent.stream import StreamState
from ptymux.cursor import Ancestor
from ptymux.messages import Error, Refused
from ptymux.requests import ReplyCache

log = logging.getLogger("guestagent.hub")

HOUSEKEEPING = 0.5  # seconds between two looks for stalled readers, silent terminals and expired sessions


class Hub(Services):
    def __init__(self, config: Config, link: KeeperLink, tokens: access.Tokens) -> None:
        super().__init__(config, link)
        self.keeper = link
        self.tokens = tokens
        self.replies = ReplyCache()
        self.agent_id = b""
        self.generation = b""
        self.lineage: Sequence[Ancestor] = ()
        self.cgroups: str | None = None
        self.no_cgroups = ""
        self.is_init = False  # the keeper is process 1
        self.keeper_pid = os.getppid()
        self.restarts = 0
        self.sessions: dict[str, Session] = {}
        self.strangers: dict[Client, None] = {}  # connections that have not said hello, oldest first
        self.environment: dict[str, str] = {}  # of new sessions, beside the configured: a restore's
        self.lifecycle = Lifecycle(self)
        self.stop: Callable[[], None] = lambda: None

    # --- connections ------------------------------------------------------------------------------
    def authenticate(self, origin: Origin, token: bytes | None) -> str | None:
        """The role of a connection with this token, or None if it may not be here."""
        if token:
            role = self.tokens.role_of(token)
        else:
            role = origin.max_role if origin.trusted and not self._wants_token(origin) else None
        if role is None:
            self.stats.refused += 1
            return None
        return access.lesser(role, origin.max_role)

    def _wants_token(self, origin: Origin) -> bool:
        listen = getattr(self.config.listen, origin.kind)
        return bool(self.tokens) and listen is not None and getattr(listen, "token", True)

    def add_peer(self, peer: Client) -> None:
        """A connection was accepted.  Too many strangers: the one that has said nothing for longest makes room."""
        self.stats.connections_total += 1
        most = self.config.limits.max_connections
        if len(self.strangers) >= most:
            longest = next(iter(self.strangers))
            del self.strangers[longest]  # now, and not when its task has ended: others may come in meanwhile
            text = f"cannot connect: max_connections ({most}) others have not said hello either"
            longest.send(Error("limit", text, True, {"limit": "max_connections", "value": most}))
            longest.hang_up()
        self.strangers[peer] = None

    def is_full(self, client: bytes) -> bool:
        """Is there no room for a connection of this client?  One that replaces its older one needs none."""
        return client not in self.peers and len(self.peers) >= self.config.limits.max_connections

    def greeted(self, peer: Client) -> None:
        """The hello was accepted; an older connection of the same client is replaced at once."""
        self.strangers.pop(peer, None)
        older = self.peers.get(peer.client)
        self.peers[peer.client] = peer
        if older is not None:
            older.send(Error("replaced", "a newer connection of this client took over", True))
            self.flush()
            older.hang_up()

    def gone(self, peer: Client) -> None:
        self.strangers.pop(peer, None)
        self._dirty.pop(peer, None)
        if self.peers.get(peer.client) is peer:
            del self.peers[peer.client]

    def drop_connections(self, code: str, text: str, *, but: Client | None) -> None:
        """End every connection but one, whoever is at the other end of it by now."""
        for peer in [*self.peers.values(), *self.strangers]:
            if peer is not but:
                peer.drop(code, text)

    def refuse_input(self, peer: Client, session: str, offset: int) -> None:
        peer.send(Refused(session, offset, "not_found", f"cannot type: no session {session}"))

    # --- sessions ---------------------------------------------------------------------------------
    def find(self, name: str) -> Session | None:
        """The session with this id or name."""
        found = self.sessions.get(name)
        if found is None:
            found = next((session for session in self.sessions.values() if session.name == name), None)
        return found

    def adopt(self, record: dict[str, Any], fds: list[int]) -> Session:
        """Take a session over from the keeper."""
        session = Session(self, record, dict(zip(record["fds"], fds, strict=True)))
        self.sessions[session.id] = session
        session.begin()
        creator = session.meta.get("creator")
        if creator and creator[1] is not None:
            client, key = creator
            self.replies.restore(client, key, ("ok", {"id": session.id}))
        if record["status"] is not None:
            session.ended_with(record["status"], record["ended"], oom=record.get("oom", False))
        return session

    def store(self, key: str, value: bytes | None) -> None:
        """Keep a blob where the next server finds it; None removes it."""
        self.link.send({"op": "store", "key": key, "value": value})

    def remember(self, client: bytes, key: bytes, answer: Any) -> None:
        """Keep an answer where the next server finds it."""
        self.link.send({"op": "remember", "entry": msgpack.packb([client, key, answer])})

    def on_keeper(self, message: dict[str, Any]) -> None:
        """A message of the keeper that answers nothing."""
        if message["op"] == "exited":
            session = self.sessions.get(message["id"])
            if session is not None:
                session.ended_with(message["status"], message["ended"], oom=message.get("oom", False))
                self.flush()
        elif message["op"] == "stopping":
            self.stop()

    def remove(self, session: Session, *, kill: bool = False) -> None:
        """Forget a session; with `kill` also what runs in it."""
        del self.sessions[session.id]
        session.close(kill=kill)

    async def keep_house(self) -> None:
        """Until cancelled."""
        while True:
            await trio.sleep(HOUSEKEEPING)
            now = self.now()
            for session in list(self.sessions.values()) if not self.held else ():
                for stream in session.streams.values():
                    if stream.paused:
                        stream.demote_stalled(now)
                    if stream.state is StreamState.SILENT:
                        stream.probe()
                session.input.retry_end()
                if session.expired(now):
                    log.info("session %s is removed: retention is over", session.id)
                    self.remove(session)
            self.flush()

    def goodbye(self) -> None:
        """Tell every client that this server process ends; they come back to the next one."""
        for peer in [*self.peers.values(), *self.strangers]:
            peer.send(Error("shutdown", "the agent's server process ends", True))
        self.flush()

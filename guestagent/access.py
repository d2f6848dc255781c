"""Who may do what: roles, and tokens from a file or descriptor.

A token file has one token a line, alone (it grants `admin`) or behind a role: ``viewer s3cret``.  Empty lines and lines that
begin with ``#`` are skipped.  Tokens are compared in constant time and never leave the server: not in an environment, not on a
command line, not in a log.
"""

from __future__ import annotations

import hmac
import os

from ptymux import limits

ROLES = ("viewer", "controller", "admin")


def allows(role: str, needed: str) -> bool:
    """Does `role` include what `needed` may do?"""
    return ROLES.index(role) >= ROLES.index(needed)


def lesser(one: str, other: str) -> str:
    return min(one, other, key=ROLES.index)


class Tokens:
    def __init__(self, text: str) -> None:
        self._known: list[tuple[bytes, str]] = []
        for number, raw in enumerate(text.splitlines(), 1):
            line = raw.strip()
            if not line or line.startswith("#"):
                continue
            *roles, token = line.split()
            role = roles[0] if roles else "admin"
            if len(roles) > 1 or role not in ROLES:
                raise ValueError(f"line {number} is neither TOKEN nor ROLE TOKEN")
            if len(token.encode()) > limits.MAX_TOKEN:
                raise ValueError(f"line {number} is longer than max_token ({limits.MAX_TOKEN})")
            self._known.append((token.encode(), role))

    def __bool__(self) -> bool:
        return bool(self._known)

    def role_of(self, token: bytes) -> str | None:
        """The role that this token grants, None if it is not known.  Takes the same time for any wrong token."""
        role = None
        for known, granted in self._known:
            if hmac.compare_digest(known, token):
                role = granted
        return role


def read_source(source: str) -> str:
    """The text of a token file; ``fd:N`` reads descriptor N to its end."""
    if source.startswith("fd:") and source[3:].isdigit():
        with os.fdopen(int(source[3:]), encoding="utf-8") as file:
            return file.read()
    with open(source, encoding="utf-8") as file:
        return file.read()

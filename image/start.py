"""What starts the agent in a root file system: systemd, or `guestagent init` as process 1."""

from __future__ import annotations

from image.agent import BASE, FILES
from image.entries import Entry, Root
from image.errors import ImageError

STARTS = ("auto", "systemd", "init", "none")
SYSTEMD = ("/lib/systemd/systemd", "/usr/lib/systemd/systemd")
UNITS = "/etc/systemd/system"
CONFIG = "/etc/guestagent/config.toml"
DEFAULT_CONFIG = """\
# See guestagent/config.py for every key.  The host comes by vsock; what runs in the guest, by the unix socket.
[listen.vsock]
port = 5252

[listen.unix]
path = "/run/guestagent.sock"
"""


def entries(root: Root, start: str = "auto", config: str | None = None) -> list[Entry]:
    """Links, units and configuration.  A configuration that is there stays, unless a new one is given."""
    found = [
        Entry.link("/usr/local/bin/guestagent", f"{BASE}/bin/guestagent"),
        Entry.link("/usr/local/bin/ptymux", f"{BASE}/bin/ptymux"),
    ]
    if config is not None or not root.exists(CONFIG):
        found.append(Entry.file(CONFIG, DEFAULT_CONFIG if config is None else config))
    has_systemd = any(map(root.exists, SYSTEMD))
    if start == "systemd" and not has_systemd:
        raise ImageError("cannot start the agent by systemd: the root file system has none")
    if start == "systemd" or (start == "auto" and has_systemd):
        found += [Entry.file(f"{UNITS}/{path.name}", path.read_bytes()) for path in sorted(FILES.glob("guestagent.*"))]
        found.append(Entry.link(f"{UNITS}/multi-user.target.wants/guestagent.service", "../guestagent.service"))
    elif start == "init" or (start == "auto" and not root.exists("/sbin/init")):
        found.append(Entry.link("/sbin/init", f"{BASE}/init"))
    return found

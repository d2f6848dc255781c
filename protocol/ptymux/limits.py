"""Every limit of the protocol and of the agent, with the reason for its number.

A limit that is reached is answered with an error that carries the constant's name in lower case
(``{"limit": "max_sessions", "value": 1024}``), so that whoever meets it can find it here.  Sizes are bytes,
times are seconds.  The names are public: ``info`` reports them and the configuration file may lower or raise those in
:data:`CONFIGURABLE`.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

# --- frames ---------------------------------------------------------------------------------------
MAX_FRAME = (
    1 * MIB
)  # largest frame body; trio-websocket's largest message is 1 MiB too, and a relay can size its buffer
MAX_GREETING = 4 * KIB  # largest frame before the hello was accepted: a stranger may not make us buffer a megabyte
MAX_OUTPUT_DATA = 64 * KIB  # output bytes in one frame: what a frame already begun can delay a keystroke's echo by
MAX_INPUT_DATA = 32 * KIB  # input bytes in one frame: below the frame limit with room, large enough for a paste
MAX_BATCH = 256 * KIB  # bytes handed to the transport at a time; on WebSocket the size of one message

# --- flow -----------------------------------------------------------------------------------------
DEFAULT_WINDOW = 512 * KIB  # credit a client gives beyond what it has consumed; twice the hold window keeps a pipe full
MAX_WINDOW = 64 * MIB  # more would not be acknowledgement any more
HOLD_WINDOW = 256 * KIB  # how far a program may run ahead of a client that it waits for: Ctrl-C is felt at once
INPUT_WINDOW = 256 * KIB  # input in flight per client and session: the agent's memory for a program that does not read
DEMOTE_AFTER = 5.0  # a holder that acknowledges nothing for so long is not waited for any more
BLOCK_LEASE = 3600.0  # how long a `block` session waits for its absent holder: a lunch break, not a leak
HOT_FOR = 0.5  # a session counts as interactive for so long after its last input

# --- sessions -------------------------------------------------------------------------------------
MAX_SESSIONS = 1024  # each costs two fds in two processes; the usual hard limit of 4096 fds must hold them
DEFAULT_HISTORY = 4 * MIB  # a long build log; untouched pages cost nothing
MIN_HISTORY = 64 * KIB  # below this a ring cannot hold one read and what a reader is looking at
MAX_HISTORY = 1024 * MIB  # a mistake in the unit must not take the guest's memory
MARK_AREA = 64 * KIB  # bytes of marks kept per stream: some 1500 resizes; the oldest are overwritten, and a gap says so
SNAPSHOT_SCROLLBACK = (
    1000  # lines above the screen in a snapshot: what fits a first paint; the rest is asked for by pages
)
MAX_SNAPSHOT = (
    8 * MIB
)  # bytes: 1000 lines of 200 cells with a colour each take 5 MB; beyond that scrollback is left out
MAX_MARK = 4 * KIB  # one mark; longer texts are cut by whoever makes the mark
MAX_INPUT_CLIENTS = (
    512  # clients whose input position a session remembers; twice the connections, so none that is here is forgotten
)
MAX_NAME = 64  # characters of a session's name
MAX_LABEL = 1024  # characters of a label
MAX_ARGV = 128 * KIB  # bytes of argv and environment together: one Linux argument page limit (MAX_ARG_STRLEN)
MAX_COLUMNS = 1000  # and rows; a larger terminal is a mistake or an attack on the renderer
MIN_COLUMNS = 2  # curses programs divide by it
COOKED_LINE = (
    4095  # bytes that the kernel keeps of one line in canonical mode (N_TTY_BUF_SIZE - 1); the rest is lost silently
)
RETENTION = 600.0  # how long an ended session can still be read
EXIT_DRAIN = 0.1  # how long the exit mark waits for the end of output when a descendant still holds it open

# --- connections ----------------------------------------------------------------------------------
MAX_CONNECTIONS = 256  # Firecracker's vsock carries 1023; each costs about 100 KiB when it is busy
MAX_ATTACHES = 1024  # per connection: one for each session there can be
MAX_REQUESTS = 64  # unanswered requests per connection
MAX_CONTROL = 2 * MIB  # bytes of answers a connection may leave unread before it is dropped
MAX_REPLIES = 4096  # remembered answers to requests with an idempotency key, over all clients
GREETING_TIME = 5.0  # until the hello was accepted, TLS and WebSocket handshakes included
PING_AFTER = 15.0  # quiet time after which a side pings; proxies cut an idle WebSocket at 60 s
DEAD_AFTER = 45.0  # quiet time after which a connection is given up: two pings may get lost
CLIENT_ID_SIZE = 16  # bytes, random
GENERATION_SIZE = 16  # bytes, random
KEY_SIZE = 16  # bytes of an idempotency key, random
MAX_TOKEN = 1024  # bytes; a signed web token fits, and a hello that carries it fits max_greeting

# --- client ---------------------------------------------------------------------------------------
INPUT_MAX_AGE = 10.0  # keystrokes older than this are given up after a reconnect: the shell has moved on
BACKOFF_FIRST = 0.05  # first pause between dials once one has failed
BACKOFF_MAX = 5.0  # longest pause: a user who comes back from a tunnel waits no longer
GIVE_UP_AFTER = (
    30.0  # how long the command line keeps trying to get a lost agent back: longer than a reboot, shorter than patience
)

# What the agent's configuration file may change, and what `info` reports.
CONFIGURABLE = (
    "max_sessions",
    "max_connections",
    "default_history",
    "max_history",
    "retention",
    "greeting_time",
    "ping_after",
    "dead_after",
    "demote_after",
    "block_lease",
    "hold_window",
)
REPORTED = (*CONFIGURABLE, "max_frame", "max_attaches", "max_requests", "input_window", "max_window", "cooked_line")


def defaults() -> dict[str, float]:
    """The reported limits by their public (lower-case) names."""
    return {name: globals()[name.upper()] for name in REPORTED}

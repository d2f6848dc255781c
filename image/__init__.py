"""Bakes the agent into a root file system.

In the order in which things happen: `lock` reads what is pinned, `target` looks at the guest's Python, `wheels` fetches for it,
`agent` makes the folder /opt/guestagent of that and of our sources (`bom` says what is inside), `start` what starts it.  All of these
are lists of :class:`~image.entries.Entry`, and `folder`, `tarball` and `ext4` put them into a root file system.  `debian` makes one
from nothing, `kernel` what boots it.  Run ``python -m image``.
"""

"""The snapshot lifecycle: quiesce the guest, and bring it back as itself or as a branch.

`table` is the state machine as data, `record` where it is and what a later server must know of that, and `tickets` how the last ones
ended.  `lifecycle` is who asks for what, and whether it may be now (`operation`: what is under way); `quiescing` and `branching` carry it
out: `steps` are the pairs of do and undo of a quiesce, `restoration` what makes a restored VM one of its own.

Each of the others knows one thing: `freezer` and `signals` stop the sessions, `filesystems` makes the disk consistent, `entropy`,
`clock` and `identity` are what a branch must not share, `lineage` where its history forked, `hooks` the site's own programs, `callers`
who may ask, `urgency` how to get the CPU for it, `detection` what the hardware tells, and `system` the one door to everything of the
machine that a test must not touch.
"""

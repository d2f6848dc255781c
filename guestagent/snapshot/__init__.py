"""The snapshot lifecycle: quiesce the guest, and bring it back as itself or as a branch.

`table` is the state machine as data and `lifecycle` drives it; `steps` are the pairs of do and undo of a quiesce, `restoration` what
makes a restored VM one of its own.  Each of the others knows one thing: `freezer` and `signals` stop the sessions, `filesystems`
makes the disk consistent, `entropy`, `clock` and `identity` are what a branch must not share, `lineage` where its history forked,
`hooks` the site's own programs, `callers` who may ask, `detection` what the hardware tells, and `system` the one door to everything
of the machine that a test must not touch.
"""

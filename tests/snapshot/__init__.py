"""Snapshot and clone without a VM: real keepers, servers, sessions and connections; only the machine is played.

`clone` takes a "snapshot" of a quiesced agent and starts "branches" from it, `keeper` is the keeper that makes both possible, and
`machine` stands in for what belongs to the machine: clock, random numbers, identity, filesystems, VMGenID.
"""

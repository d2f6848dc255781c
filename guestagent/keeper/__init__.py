"""The keeper: the process that owns children, PTY masters and histories, and outlives every server.

Single-threaded, without trio, almost never changed.  `loop` is the process, `spawn` starts one child, `records` is what
it holds.
"""

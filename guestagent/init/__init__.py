"""`guestagent init`: the agent as the first process of an image that has no init of its own.

There is no supervisor beside it: process 1 *is* the keeper, which reaps, restarts the server and cannot be killed, neither by a
SIGKILL nor by the out-of-memory killer.  `options` reads the kernel's command line, `mounts` and `system` make a system of a bare
kernel, `power` ends it, `main` puts them in order.
"""

"""Ratios of the agent to a C relay with the same framing, measured in one run: `python -m bench --help`.

Not part of the wheel.  Nothing here knows the agent's insides: it is started as a command and spoken to over its sockets.
"""

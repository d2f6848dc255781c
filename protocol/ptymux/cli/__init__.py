"""The command `ptymux`: terminals of a guest, from a host's shell.

`main` parses and dispatches, `commands` are the short ones, `execute` and `attach` the two that run for long, `terminal` and
`stdio` what they know of the local terminal and files.
"""

from ptymux.cli.main import main

__all__ = ["main"]

"""The command `guestagent`: serve, init, check, upgrade.

`serve` must start fast and stay small: the keeper that it becomes imports neither argparse nor trio, and passes its options on
to the server, which checks them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

USAGE = """\
usage: guestagent serve [--config FILE] [--unix PATH] [--vsock PORT] [--websocket HOST:PORT] [--token-file FILE]
       guestagent init            as process 1 of a machine; takes its options from the kernel's command line
       guestagent check [--json]
       guestagent upgrade [the options that serve was given]
       guestagent --version
"""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = arguments[0] if arguments else ""
    if command == "serve":
        from guestagent.keeper.loop import Keeper
        from guestagent.launch import module_argv

        return Keeper([*module_argv("guestagent.server"), *arguments[1:]]).run()
    if command == "init":
        from guestagent.init import main as init

        return init.main(arguments[1:])
    if command == "check":
        from guestagent import check

        return check.main(arguments[1:])
    if command == "upgrade":
        from guestagent import upgrade

        return upgrade.main(arguments[1:])
    if command == "--version":
        from ptymux import __version__

        print(f"guestagent {__version__}")
        return 0
    if command in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    print(f"guestagent: unknown command {command!r}\n{USAGE}" if command else USAGE, end="", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())

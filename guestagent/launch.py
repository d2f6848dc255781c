"""How one process of the agent starts another: the same interpreter, the same isolation, the same code.

In an image the agent runs as ``python3 -IS`` with one folder put in front of ``sys.path`` by its launcher, so that nothing in the
guest's own Python packages or environment can reach it.  ``-m`` would lose that folder, as ``-I`` ignores PYTHONPATH.
"""

from __future__ import annotations

import os
import sys


def module_argv(module: str) -> list[str]:
    """The command line that runs ``main(arguments)`` of one of our modules; append the arguments."""
    if not sys.flags.isolated:
        return [sys.executable, "-m", module]
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    code = f"import sys; sys.path.insert(0, {folder!r}); from {module} import main; sys.exit(main(sys.argv[1:]))"
    return [sys.executable, "-IS" if sys.flags.no_site else "-I", "-c", code]

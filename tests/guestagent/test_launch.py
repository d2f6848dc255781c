"""launch.py: a process started by an isolated one is isolated as well."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import guestagent
from guestagent.launch import module_argv

PROJECT = Path(guestagent.__file__).parent.parent
ASK = """\
import sys, json
sys.path[:0] = {paths!r}
from guestagent.launch import module_argv
print(json.dumps(module_argv("guestagent.check")))
"""


def test_an_interpreter_that_is_not_isolated_uses_its_own_way() -> None:
    assert module_argv("guestagent.server") == [sys.executable, "-m", "guestagent.server"]


@pytest.mark.parametrize("flags", ["-I", "-IS"])
def test_isolation_is_handed_on(flags: str) -> None:
    paths = [str(PROJECT), str(PROJECT / "protocol")]
    done = subprocess.run([sys.executable, flags, "-c", ASK.format(paths=paths)], capture_output=True, check=True)
    argv = json.loads(done.stdout)
    assert argv[:3] == [sys.executable, flags, "-c"]
    assert "guestagent.check" in argv[3]
    if flags == "-I":  # the packages that we need are in the site-packages of this environment
        ended = subprocess.run([*argv, "--nonsense"], capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (2, "usage: guestagent check [--json]\n")

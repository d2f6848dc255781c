"""The sans-IO modules do no I/O: time, chance and ids are arguments, so that every schedule can be tested."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import ptymux

HOME = Path(ptymux.__file__).parent
SANS_IO = (
    "limits",
    "errors",
    "address",
    "messages",
    "frames",
    "cursor",
    "output",
    "input",
    "requests",
    "liveness",
    "backoff",
    "handshake",
    "events",
    "machine",
    "queries",
    "metrics",
)
FORBIDDEN = {"trio", "asyncio", "time", "datetime", "logging", "socket", "select", "ssl", "random", "secrets", "uuid", "os",
             "threading", "subprocess"}  # fmt: skip


def imported(path: Path) -> set[str]:
    """Top-level names of everything that a module imports, also inside functions and under TYPE_CHECKING."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


@pytest.mark.parametrize("name", SANS_IO)
def test_a_sans_io_module_imports_neither_io_nor_time_nor_chance(name: str) -> None:
    names = imported(HOME / f"{name}.py")
    assert not {module.split(".")[0] for module in names} & FORBIDDEN
    for module in names:
        if module.startswith("ptymux."):
            assert module.split(".")[1] in SANS_IO, f"{name} imports {module}, which is not sans-IO"


@pytest.mark.parametrize("name", SANS_IO)
def test_a_sans_io_module_reads_no_clock_and_prints_nothing(name: str) -> None:
    """Not even through a builtin."""
    tree = ast.parse((HOME / f"{name}.py").read_text())
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & {"open", "print", "input", "__import__", "exec", "eval"}


def test_the_core_loads_neither_trio_nor_asyncio() -> None:
    """In a fresh process: the guest's keeper imports the core and must not pay 25 MB for trio."""
    program = "\n".join(
        [
            "import sys",
            *(f"import ptymux.{name}" for name in SANS_IO),
            "heavy = {'trio', 'asyncio', 'logging', 'socket', 'ssl', 'random', 'secrets', 'trio_websocket', 'ptyprocess'}",
            "print(*sorted(heavy & set(sys.modules)))",
        ]
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    # msgpack's timestamps and urllib's IP addresses bring the standard library's datetime and ipaddress, which cost little.
    assert result.stdout.split() == []


@pytest.mark.parametrize("name", ["ptymux", *(f"ptymux.{name}" for name in SANS_IO)])
def test_one_import_does_not_load_trio(name: str) -> None:
    """Each module by itself, so that none depends on another having been loaded before."""
    program = f"import sys, {name}; sys.exit('trio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_package_offers_what_it_lists() -> None:
    """`__all__`, the lazy table and the names for type checkers are the same."""
    tree = ast.parse((HOME / "__init__.py").read_text())
    for_checkers = {
        (node.module, alias.name)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert for_checkers == {(module, name) for name, module in ptymux._HOME.items()}
    assert sorted(ptymux._HOME) == sorted(ptymux.__all__)
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        ptymux.nothing_of_this_name  # noqa: B018
    for name, module in ptymux._HOME.items():
        if module.removeprefix("ptymux.") in SANS_IO:
            assert getattr(ptymux, name) is getattr(importlib.import_module(module), name)

"""``python -m bench.boot``: what the agent costs an image and its guest.

Boots the same Debian with the agent precompiled and not, in turn, in software emulation (TCG); ready is when the agent listens on
vsock.  The times say something about one another and little about a machine with KVM; on a busy machine only the CPU time of QEMU
says anything.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

from image import agent, kernel
from image.__main__ import main as image
from image.target import Target
from tests.harness import ptymux
from tests.vm.lab.machine import Spec, booted

READY = "listening on"
KINDS = {"precompiled": [], "sources only": ["--no-precompile"]}
# Proportional share: of pages that several processes have, each is given its part.
MEMORY = """
for pid in 1 $(pgrep -f '[g]uestagent.server'); do
    echo $pid $(awk '/^Rss:/ {r=$2} /^Pss:/ {p=$2} END {print r, p}' /proc/$pid/smaps_rollup)
done
"""


def cpu(pid: int) -> float:
    """Seconds of processor time of a process and its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m bench.boot", description=__doc__)
    options.add_argument("--boots", type=int, default=5, help="of each kind")
    boots = options.parse_args().boots
    made = kernel.build()
    with tempfile.TemporaryDirectory() as scratch:
        specs = {}
        for kind, arguments in KINDS.items():
            disk = Path(scratch, f"{len(specs)}.ext4")
            if image(["build", str(disk), "--start", "init", *arguments]) != 0:
                return 1
            specs[kind] = Spec(made / "vmlinuz", made / "initrd", disk)
        times: dict[str, list[float]] = {kind: [] for kind in specs}
        work: dict[str, list[float]] = {kind: [] for kind in specs}
        memory = ""
        for _ in range(boots):
            for kind, spec in specs.items():
                with booted(spec) as vm:
                    times[kind].append(vm.wait_console(READY))
                    work[kind].append(cpu(vm.process.pid))
                    if kind == "precompiled" and not memory:
                        shown = ptymux(vm.address(), "exec", "--no-tty", "--", "sh", "-c", MEMORY, timeout=60)
                        memory = shown.stdout.decode()
    for what, table in (("boot to ready", times), ("CPU time until then", work)):
        for kind, taken in table.items():
            all_of_them = " ".join(f"{one:.1f}" for one in sorted(taken))
            print(f"{what}, {kind}: median {statistics.median(taken):.1f} s of {all_of_them}")
    for kind in KINDS:
        entries = agent.build(Target(), precompile=kind == "precompiled")
        print(f"image, {kind}: {len(entries)} files, {sum(len(entry.data) for entry in entries) / 1e6:.1f} MB")
    for name, line in zip(("keeper (process 1)", "server"), memory.splitlines(), strict=False):
        _, rss, pss = line.split()
        print(f"memory, {name}: {int(rss) / 1024:.1f} MiB resident, {int(pss) / 1024:.1f} MiB proportional")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A keeper whose state can be copied, and that can begin with a copy.  Otherwise the real one.

With GUESTAGENT_TEST_DUMP it writes what it holds (store, answers, records) into ``<folder>/state`` after each message that changes it.
The histories are copied from outside, through /proc.

With GUESTAGENT_TEST_CLONE it begins as the copy in that folder: same store, same sessions, same histories.  A process cannot be copied,
so each session gets a stand-in from ``standins`` (session id -> argv), which has run nothing yet when its group is frozen,
as the quiesced original's is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack

from guestagent.keeper.loop import Keeper
from guestagent.keeper.records import Record
from guestagent.keeper.spawn import Child
from tests.harness import wait_for

DUMP, CLONE = "GUESTAGENT_TEST_DUMP", "GUESTAGENT_TEST_CLONE"

# Runs nothing before the file is there, but sets the terminal's mode (which a real clone has from its original) if "raw" is the first word.
STAND_IN = (
    'if [ "$2" = raw ]; then stty raw -echo; id=$1; shift; else id=$1; fi; shift; '
    'touch "$0.$id"; while [ ! -e "$0" ]; do sleep 0.01; done; exec "$@"'
)


class CopyingKeeper(Keeper):
    _loaded = False

    def _dispatch(self, message: dict[str, Any]) -> None:
        super()._dispatch(message)
        if DUMP in os.environ and message["op"] in ("store", "meta", "remember", "release", "spawn"):
            self._dump(Path(os.environ[DUMP]))

    def _dump(self, folder: Path) -> None:
        records = [
            {
                "id": record.id,
                "pid": record.child.pid,
                "tty": record.tty,
                "meta": record.meta,
                "started": record.started,
                "status": record.status,
                "ended": record.ended,
                "open": bool(record.child.fds),
                "histories": record.histories,
            }
            for record in self._records.values()
        ]
        state = {"store": self._store, "remembered": list(self._remembered), "records": records}
        (folder / "state.new").write_bytes(msgpack.packb(state))
        (folder / "state.new").rename(folder / "state")

    def _start_server(self) -> None:
        if CLONE in os.environ and not self._loaded:
            self._loaded = True
            self._load(Path(os.environ[CLONE]))
        super()._start_server()

    def _load(self, folder: Path) -> None:
        state = msgpack.unpackb((folder / "state").read_bytes())
        self._store.update(state["store"])
        self._remembered.extend(state["remembered"])
        standins = msgpack.unpackb((folder / f"standins.{os.environ['GUESTAGENT_TEST_NAME']}").read_bytes())
        go = folder / f"go.{os.getpid()}"
        quiesced = msgpack.unpackb(self._store["snapshot/state"])["state"] == "quiesced"
        for saved in state["records"]:
            memory = [(folder / f"{saved['id']}.{name}").read_bytes() for name in saved["histories"]]
            argv = standins.get(saved["id"], ["sleep", "infinity"])
            record = self._stand_in(
                saved, ["sh", "-c", STAND_IN, str(go), saved["id"], *argv], [len(data) for data in memory]
            )
            for fd, data in zip(record.histories.values(), memory, strict=True):
                os.pwrite(fd, data, 0)
            record.started = saved["started"]
            self._records[record.id] = record
            if record.status is None:
                self._by_pid[record.child.pid] = record
            if saved["open"]:
                wait_for(Path(f"{go}.{record.id}").exists, "the stand-in")
        groups = [record.group for record in self._records.values() if record.group is not None]
        for group in groups if quiesced else ():
            Path(f"{group}/cgroup.freeze").write_text("1")
        for group in groups if quiesced else ():
            wait_for(lambda group=group: "frozen 1" in Path(f"{group}/cgroup.events").read_text(), "frozen stand-ins")
        go.touch()

    def _stand_in(self, saved: dict[str, Any], argv: list[str], sizes: list[int]) -> Record:
        if not saved["open"]:  # it has ended
            histories = dict(zip(saved["histories"], _memory(sizes), strict=True))
            child = Child(saved["pid"], {})
            return Record(
                saved["id"],
                child,
                saved["tty"],
                None,
                saved["meta"],
                saved["started"],
                histories,
                saved["status"],
                saved["ended"],
            )
        meta = msgpack.unpackb(saved["meta"])
        return self._new_record(
            {
                "id": saved["id"],
                "argv": argv,
                "env": {},
                "cwd": "/",
                "size": meta["size"],
                "tty": saved["tty"],
                "memory": sizes,
                "meta": saved["meta"],
            }
        )


def _memory(sizes: list[int]) -> Iterator[int]:
    for size in sizes:
        fd = os.memfd_create("guestagent-history", os.MFD_CLOEXEC)
        os.ftruncate(fd, size)
        yield fd


if __name__ == "__main__":
    options = sys.argv[sys.argv.index("serve") + 1 :]
    sys.exit(CopyingKeeper([sys.executable, "-m", "guestagent.server", *options]).run())

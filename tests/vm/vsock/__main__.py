"""The device's process: ``python -m tests.vm.vsock --mode ioctl --socket SOCK --path V.SOCK --cid 3``.

It says ``ready`` on its standard output.  On standard input it takes words, each answered with a line of JSON: ``status``, and
``reset-guest``, what a snapshot does on Firecracker to a guest that goes on.  It ends with its standard input, and so with its parent.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from tests.vm.vsock.channel import Gone
from tests.vm.vsock.device import Device
from tests.vm.vsock.ioctl import IoctlChannel
from tests.vm.vsock.loop import READ, Loop
from tests.vm.vsock.table import FIRST_PORT
from tests.vm.vsock.user import UserChannel

log = logging.getLogger("vsock")


class Channel(Protocol):
    def handle(self) -> None: ...


CHANNELS: Final[dict[str, Callable[[Device, socket.socket], Channel]]] = {"user": UserChannel, "ioctl": IoctlChannel}
MAX_COMMAND: Final = 4096


class Server:
    """The socket on which QEMU finds the device, one QEMU at a time, and the words from our parent."""

    def __init__(self, mode: str, path: str, device: Device, loop: Loop) -> None:
        self._mode = mode
        self._path = path
        self._device = device
        self._loop = loop
        self._qemu: socket.socket | None = None
        with suppress(FileNotFoundError):
            os.unlink(path)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(1)
        self._words = bytearray()
        loop.watch(self._listener, READ, self._accept)
        loop.watch(0, READ, self._command)

    def close(self) -> None:
        self._listener.close()
        with suppress(FileNotFoundError):
            os.unlink(self._path)

    def _accept(self, events: int) -> None:
        there, _ = self._listener.accept()
        if self._qemu is not None:
            log.error("a second QEMU was sent away")
            there.close()
            return
        self._qemu = there
        channel: Channel = CHANNELS[self._mode](self._device, there)

        def message(events: int) -> None:
            try:
                channel.handle()
            except Gone as error:
                log.info("QEMU is gone: %s", error)
                self._loop.watch(there, 0, message)
                there.close()
                self._qemu = None
                self._device.disconnected()

        self._loop.watch(there, READ, message)

    def _command(self, events: int) -> None:
        data = os.read(0, MAX_COMMAND)
        self._words += data
        if not data or len(self._words) > MAX_COMMAND:
            self._loop.running = False
            return
        while b"\n" in self._words:
            word, _, self._words = self._words.partition(b"\n")
            print(json.dumps(self._obey(word.decode(errors="replace"))), flush=True)

    def _obey(self, word: str) -> dict[str, object]:
        table = self._device.table
        if word == "reset-guest":
            table.reset_guest()
            self._device.pump()
        elif word != "status":
            return {"error": f"what is {word!r}?"}
        return {
            "connections": len(table.connections),
            "violations": table.violations,
            "broken": self._device.broken,
            "running": self._device.rings[0].running,
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=sorted(CHANNELS), required=True)
    parser.add_argument("--socket", required=True, help="where QEMU, or its shim, finds the device")
    parser.add_argument("--path", required=True, help="where programs of the host dial")
    parser.add_argument("--cid", type=int, default=3)
    parser.add_argument("--first-port", type=int, default=FIRST_PORT)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    logging.basicConfig(
        level=logging.INFO if options.verbose else logging.WARNING, format="%(asctime)s %(message)s", stream=sys.stderr
    )
    loop = Loop()
    device = Device(options.cid, options.path, loop, options.first_port)
    server = Server(options.mode, options.socket, device, loop)

    def stop(number: int, frame: object) -> None:
        loop.running = False

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started us
    print("ready", flush=True)
    try:
        loop.run()
    finally:
        server.close()
        device.close()
        loop.close()


main()

"""What the kernel's command line says to us.

==========================  ================================================================================================
guestagent.config=FILE      configuration file; /etc/guestagent/config.toml if that is there
guestagent.vsock=PORT       as the options of `guestagent serve`; with none of them and no file: vsock 5252 and
guestagent.unix=PATH        /run/guestagent.sock
guestagent.websocket=H:P
guestagent.token_file=FILE
guestagent.off=HOW          poweroff (default) or reboot: what ends this machine.  Firecracker has no power management and ends
                            on a reboot.
hostname=NAME               as the kernel itself takes it from 5.19 on; else the first line of /etc/hostname
==========================  ================================================================================================

Unknown ``guestagent.`` options are an error, told on the console, and the rest is done: a machine that says what is wrong is
better than one that is silent.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

from ptymux.address import DEFAULT_UNIX_PATH, DEFAULT_VSOCK_PORT

CONFIG = "/etc/guestagent/config.toml"
SERVE = ("config", "vsock", "unix", "websocket", "token_file")
OFF = ("poweroff", "reboot")


@dataclass
class Options:
    serve: list[str] = field(default_factory=list)  # for the server
    hostname: str | None = None
    off: str = "poweroff"
    problems: list[str] = field(default_factory=list)


def parse(cmdline: str, *, has_config: bool) -> Options:
    """`cmdline` as in /proc/cmdline; `has_config`: the default configuration file exists.  Later options win."""
    options = Options()
    serve: dict[str, str] = {}
    for word in _words(cmdline):
        if word == "--":
            break  # what follows is for whatever `init=` names, and says nothing to us
        key, _, value = word.partition("=")
        name = key.removeprefix("guestagent.")
        if key == "hostname" and value:
            options.hostname = value
        elif name == key:
            continue
        elif name in SERVE and value:
            serve[name] = value
        elif name == "off" and value in OFF:
            options.off = value
        else:
            options.problems.append(f"cannot use {word} of the kernel's command line")
    if not serve:
        serve = {"config": CONFIG} if has_config else {"vsock": str(DEFAULT_VSOCK_PORT), "unix": DEFAULT_UNIX_PATH}
    elif "config" not in serve and has_config:
        serve["config"] = CONFIG
    for name in SERVE:
        if name in serve:
            options.serve += [f"--{name.replace('_', '-')}", serve[name]]
    return options


def _words(cmdline: str) -> list[str]:
    """Split as the kernel does: double quotes may surround a value with spaces."""
    try:
        return shlex.split(cmdline)
    except ValueError:  # a quote that is never closed
        return cmdline.split()

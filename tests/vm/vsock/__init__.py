"""A virtio-vsock device in user space, for a QEMU that knows nothing of it.

A process of its own (``python -m tests.vm.vsock``) for each VM, one thread, one selector.  From the guest to the host::

    memory.py       the guest's memory, mapped; every access is checked
    ring.py         one virtqueue: descriptor chains out, used elements in
    packet.py       the 44-byte header in front of every packet
    connection.py   one stream: its state and the credit of both directions; no I/O
    table.py        all streams, and what each packet does to them; no I/O
    host.py         the unix sockets by which the host dials in and is dialled
    device.py       the pump between the rings and the table; broken for good once a ring is malformed

and two ways in which QEMU tells where rings and memory are:

    user.py         vhost-user, as `vhost-user-vsock-pci` speaks it; QEMU refuses to snapshot that
    ioctl.py        the ioctls of /dev/vhost-vsock, which shim.c in QEMU's process forwards; the device is part of snapshots,
                    and connections are reset only after the restore, as on Firecracker

The guest is not trusted: whatever it writes costs it its connections or its device, never this process or the host's memory.
"""

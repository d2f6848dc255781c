"""Tests in real virtual machines.

``vsock/``  a virtio-vsock device for stock QEMU, with Firecracker's convention on the host: what carries the bytes
``lab/``    kernel and images from a cache, QEMU and its monitor, snapshots and branches: what the tests stand on
``unit/``   tests of both without a VM

They are to take no more than 8 minutes with nothing in the cache and 3 with everything (measured: 3:33 and 2:33 on a machine with two cores that had
other work too): one boot for all, kept as a snapshot of which each test gets a branch.
"""

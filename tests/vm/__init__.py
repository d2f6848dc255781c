"""Tests in real virtual machines.

``vsock/``  a virtio-vsock device for stock QEMU, with Firecracker's convention on the host: what carries the bytes
``lab/``    kernel and images from a cache, QEMU and its monitor, snapshots and branches: what the tests stand on
``unit/``   tests of both without a VM
"""

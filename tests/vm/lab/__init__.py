"""Virtual machines for tests, from what there is to boot to a branch of a snapshot::

cache.py      what takes long to make, kept by a hash of what it was made from
kernel.py     Debian's kernel for clouds
initrd.py     its first file system: modules, and a tiny init of our own or a switch to a disk
monitor.py    QEMU's monitor (QMP)
vsock.py      the process of our vsock device
machine.py    one VM: boot, stop, save, restore, kill
"""

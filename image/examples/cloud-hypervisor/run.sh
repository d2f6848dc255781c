#!/bin/sh
# Boots the present folder's vmlinux, initrd and root.ext4 (see ../README.md).  Its vsock is dialled as Firecracker's is:
#   ptymux --to firecracker:$PWD/v.sock:5252 attach ...
set -eu
rm -f api.sock v.sock
exec cloud-hypervisor --api-socket api.sock --kernel vmlinux --initramfs initrd \
    --cmdline "console=ttyS0 quiet panic=-1" --serial tty --console off \
    --cpus boot=1 --memory size=256M --disk path=root.ext4 --vsock cid=3,socket="$PWD/v.sock" --rng src=/dev/urandom

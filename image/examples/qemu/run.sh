#!/bin/sh
# Boots the present folder's vmlinuz, initrd and root.ext4 (see ../README.md), console on this terminal.
#
#   CID=3      the guest's vsock address: the host needs /dev/vhost-vsock (module vhost_vsock), and dials vsock:3:5252
#   CID=none   no vsock: it boots, and nobody can come in
#   ACCEL=kvm  or tcg
set -eu
vsock="-device vhost-vsock-pci,guest-cid=${CID:=3}"
[ "$CID" = none ] && vsock=
exec qemu-system-x86_64 -machine pc -accel "${ACCEL:-kvm}" -m 256M -nodefaults -no-user-config -no-reboot -display none \
    -serial mon:stdio -kernel vmlinuz -initrd initrd \
    -append "console=ttyS0 quiet panic=-1 ${APPEND:-}" \
    -drive if=none,id=disk,format=raw,file=root.ext4 -device virtio-blk-pci,drive=disk \
    -device virtio-rng-pci -qmp unix:qmp.sock,server=on,wait=off $vsock

#!/bin/sh
# Boots vm.json in the present folder, which has vmlinux, initrd and root.ext4 (see ../README.md).  From another shell:
#   ptymux --to firecracker:$PWD/v.sock:5252 attach ...
set -eu
rm -f api.sock v.sock
exec firecracker --api-sock api.sock --config-file "$(dirname "$0")/vm.json"

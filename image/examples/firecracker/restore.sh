#!/bin/sh
# restore.sh SNAPSHOT: a branch of it, in the present folder.  Every branch needs a folder of its own: the snapshot names the disk
# and the vsock's socket by relative paths, so they are found, and made, where Firecracker runs.  (From 1.16.0 on `vsock_override`
# can name another socket; older ones refuse the whole request for it.)
set -eu
. "$(dirname "$0")/api.sh"
API=$PWD/api.sock
snapshot=$(cd "$1" && pwd)
rm -f api.sock v.sock
cp --reflink=auto --sparse=always "$snapshot/root.ext4" root.ext4
firecracker --api-sock api.sock &
until [ -S api.sock ]; do sleep 0.01; done
api PUT /snapshot/load "{\"snapshot_path\": \"$snapshot/state\", \"mem_backend\": {\"backend_type\": \"File\", \"backend_path\": \"$snapshot/memory\"}, \"resume_vm\": true}"
# Entropy, time, generation and (with --new-token-file) tokens of its own; then its sessions go on.
ptymux --to "firecracker:$PWD/v.sock:5252" snapshot restore --ticket "$(basename "$snapshot")" --machine-id random --random-seed
wait

#!/bin/sh
# snapshot.sh FOLDER: of the VM whose API socket is ./api.sock; the VM goes on.  FOLDER must not be there.
#
# The order matters: nothing of the guest moves between `prepare` and the end of `create`, and the disk is copied while the VM
# is paused.  Firecracker resets the guest's vsock when it creates a snapshot, so the clients of the source reconnect too.
set -eu
. "$(dirname "$0")/api.sh"
API=$PWD/api.sock
AGENT=firecracker:$PWD/v.sock:5252
mkdir "$1"
folder=$(cd "$1" && pwd)
ptymux --to "$AGENT" snapshot prepare --ticket "$(basename "$folder")" >"$folder/report"
trap 'ptymux --to "$AGENT" snapshot abort || true' EXIT
api PATCH /vm '{"state": "Paused"}'
trap 'api PATCH /vm "{\"state\": \"Resumed\"}" || true; ptymux --to "$AGENT" snapshot abort || true' EXIT
api PUT /snapshot/create "{\"snapshot_type\": \"Full\", \"snapshot_path\": \"$folder/state\", \"mem_file_path\": \"$folder/memory\"}"
cp --reflink=auto --sparse=always root.ext4 "$folder/root.ext4"
trap - EXIT
api PATCH /vm '{"state": "Resumed"}'
ptymux --to "$AGENT" snapshot resume --ticket "$(basename "$folder")"

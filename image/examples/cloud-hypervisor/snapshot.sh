#!/bin/sh
# snapshot.sh FOLDER: of the VM whose API socket is ./api.sock; the VM goes on.  To restore it as a branch, edit the paths of disk
# and vsock socket in FOLDER/config.json, then, in the branch's folder:
#   cloud-hypervisor --api-socket api.sock --restore source_url=file://FOLDER &
#   ch-remote --api-socket api.sock resume
#   ptymux --to firecracker:$PWD/v.sock:5252 snapshot restore --ticket $(basename FOLDER) --machine-id random --random-seed
set -eu
AGENT=firecracker:$PWD/v.sock:5252
mkdir "$1"
folder=$(cd "$1" && pwd)
ptymux --to "$AGENT" snapshot prepare --ticket "$(basename "$folder")" >"$folder.report"
trap 'ptymux --to "$AGENT" snapshot abort || true' EXIT
ch-remote --api-socket api.sock pause
trap 'ch-remote --api-socket api.sock resume || true; ptymux --to "$AGENT" snapshot abort || true' EXIT
ch-remote --api-socket api.sock snapshot "file://$folder"
cp --reflink=auto --sparse=always root.ext4 "$folder.ext4"
trap - EXIT
ch-remote --api-socket api.sock resume
ptymux --to "$AGENT" snapshot resume --ticket "$(basename "$folder")"

#!/bin/busybox sh
# The first init of a guest with a disk: modules, the disk, and on to the init that is on it.
busybox=/bin/busybox
$busybox mount -t devtmpfs dev /dev
$busybox mount -t proc proc /proc
while read -r module; do
    $busybox insmod "/modules/$module" || echo "switch: cannot load $module"
done </modules/order
init=/sbin/init
for word in $($busybox cat /proc/cmdline); do
    case $word in real_init=*) init=${word#real_init=} ;; esac
done
tries=0
until [ -b /dev/vda ] || [ $tries -ge 100 ]; do
    tries=$((tries + 1))
    $busybox usleep 20000
done
if ! $busybox mount -t ext4 -o rw /dev/vda /new; then
    echo "switch: cannot mount /dev/vda"
    $busybox poweroff -f
fi
$busybox umount /proc
$busybox mount --move /dev /new/dev 2>/dev/null || $busybox umount -l /dev
exec $busybox switch_root /new "$init"

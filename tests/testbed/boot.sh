#!/bin/sh
# The first process of a testbed host: gives it its own files, starts sshd, and reaps orphans.
# It runs in fresh net, uts, pid, mount and ipc namespaces and touches nothing outside them.
set -eu
name=$1 files=$2 home=$3 tmp_bytes=$4 sshd=$5 shared=$6

hostname "$name"
echo "$name" > "$files/etc/hostname"
for etc in hosts hostname passwd shadow; do
    mount --bind "$files/etc/$etc" "/etc/$etc"
done
cat /proc/sys/kernel/random/uuid > "$files/boot_id"
mount --bind "$files/boot_id" /proc/sys/kernel/random/boot_id
if [ -e /etc/machine-id ]; then
    tr -d - < "$files/boot_id" > "$files/machine-id"
    mount --bind "$files/machine-id" /etc/machine-id
fi

# What the machine's kernel says is about everybody's hosts, and so about none.
[ ! -e /dev/kmsg ] || mount --bind /dev/null /dev/kmsg

# A sysfs of its own shows the host's own interfaces; the control groups stay where they were.
mkdir -p "$files/cgroup"
mount --rbind /sys/fs/cgroup "$files/cgroup"
mount -t sysfs host-sys /sys
mount --move "$files/cgroup" /sys/fs/cgroup

stage="$files/stage"
mkdir -p "$stage"
mount -t tmpfs -o "mode=1777,size=$tmp_bytes" host-tmp "$stage"
printf '%s\n' "$shared" | while IFS= read -r folder; do
    printf '/tmp/%s %s/%s none bind,X-mount.mkdir,nofail 0 0\n' "$folder" "$stage" "$folder"
done > "$files/fstab"
# All by one process, of however many there are. Others' folders come and go.
mount --all --fstab "$files/fstab" 2>/dev/null || :
rmdir "$stage"/* 2>/dev/null || :  # of folders that vanished meanwhile; what is mounted stays
mount --move "$stage" /tmp

mount -t tmpfs -o "mode=1777,size=$tmp_bytes" host-shm /dev/shm
mount -t tmpfs -o mode=755,size=16m host-run /run
mkdir -p /run/sshd /run/bin "$home"
mount -t tmpfs -o "mode=700,size=$tmp_bytes" host-home "$home"
[ ! -d "$files/home" ] || cp -a "$files/home/." "$home/"

"$sshd" -f "$files/sshd_config" -E "$files/sshd.log"
while :; do
    sleep 1000000 &
    wait
done

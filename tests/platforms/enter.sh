#!/bin/sh
# Runs a command in another Debian: its root becomes /, and processes, mounts, /tmp, /run and /dev/shm are its own.
# The root is pivoted to: hosts of the testbed make namespaces of their own, which a chroot forbids.
# enter.sh ROOT SOURCE RESULTS COMMAND…: SOURCE is at /src, RESULTS at /results.
set -eu
root=$1 source=$2 results=$3
shift 3
mount --make-rprivate /
mount --bind "$root" "$root"
mkdir -p "$root/src" "$root/results" "$root/.old"
mount --bind "$source" "$root/src"
mount --bind "$results" "$root/results"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
for folder in tmp run dev/shm; do
    mount -t tmpfs -o mode=1777 tmpfs "$root/$folder"
done
mkdir -p "$root/run/sshd"
cd "$root"
pivot_root . .old
# shellcheck disable=SC2016
exec chroot . sh -c 'umount -l /.old; cd /src; exec "$@"' sh "$@"

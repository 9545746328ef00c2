#!/usr/bin/env bash
# A command in a root that root.sh made, with this tree where it is here. usage: enter.sh ROOT COMMAND...
#
# In namespaces of its own: nothing stays mounted, and nothing runs on. The environment is kept.
set -euo pipefail
tree=$(realpath "$(dirname "$0")/../..") root=$(realpath "$1")
shift
mkdir -p "$root$tree"
# shellcheck disable=SC2016
exec unshare --mount --pid --fork --kill-child bash -euc '
    root=$1 tree=$2
    shift 2
    mount -t proc proc "$root/proc"
    mount -t sysfs sysfs "$root/sys"
    for folder in /dev /dev/shm "$tree"; do mount --bind "$folder" "$root$folder"; done
    exec chroot "$root" env -C "$tree" PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"' bash "$root" "$tree" "$@"

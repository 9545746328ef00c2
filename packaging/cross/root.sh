#!/usr/bin/env bash
# A root of Debian for another kind of machine, as this system's release. usage: root.sh FOLDER PACKAGE...
#
# A cross-build finds headers and libraries in it; debs are packed and tests run in it, under qemu-user. A FOLDER that has all PACKAGEs stays as
# it is. Needs root, mmdebstrap, qemu-user-static and a kernel with binfmt_misc.
set -euo pipefail
root=$1 architecture=arm64
shift
# shellcheck disable=SC1091
. /etc/os-release

# The kernel starts programs of that machine with qemu, in a chroot too (F: qemu is opened now).
if [ ! -e /proc/sys/fs/binfmt_misc/qemu-aarch64 ]; then
    [ -e /proc/sys/fs/binfmt_misc/register ] || mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc ||
        { echo "root.sh: no binfmt_misc here: load the kernel's module, and be root in the initial user namespace" >&2; exit 2; }
    cat /usr/lib/binfmt.d/qemu-aarch64.conf >/proc/sys/fs/binfmt_misc/register
fi
if [ -e "$root/complete" ] && [ -z "$(printf '%s\n' "$@" | sort | comm -23 - "$root/complete")" ]; then
    exit 0
fi
rm -rf "$root" "$root.new"
echo "Debian $VERSION_CODENAME for $architecture goes into $root: minutes under qemu" >&2
mmdebstrap --quiet --mode=root --variant=minbase --architectures="$architecture" --include="$*" \
    --aptopt='Acquire::Languages "none"' --dpkgopt='path-exclude=/usr/share/man/*' "$VERSION_CODENAME" "$root.new"
printf '%s\n' "$@" | sort -u >"$root.new/complete"
mv "$root.new" "$root"

#!/usr/bin/env bash
# The container image, as an OCI archive. usage: image.sh OUT [BASE]
#
# BASE: an image to build on, which buildah pulls; without it one of this release is made by debootstrap, and no registry is asked.
# As root, for debootstrap; buildah works in a folder of its own and leaves none of its stores behind. Exit code 3: debootstrap
# made no root.
set -euo pipefail
out=$1 base=${2:-}
here=$(dirname "$(readlink -f "$0")")
root=$here/../..
version=$(sed -n "s/^  version: '\(.*\)',$/\1/p" "$root/meson.build")

work=$(mktemp -d -p "${TMPDIR:-/var/tmp}" crun-image.XXXXXX) # the images of both stages: 2 GB
build() { buildah --root "$work/root" --runroot "$work/run" --storage-driver "${STORAGE_DRIVER:-vfs}" "$@"; }
trap 'rm -rf "$work"' EXIT

if [ -z "$base" ]; then
    . /etc/os-release
    debootstrap --variant=minbase "$VERSION_CODENAME" "$work/base" >"$work/debootstrap.log" || { tail -n 5 "$work/debootstrap.log" >&2; exit 3; }
    mkdir "$work/import"
    tar -C "$work/base" --one-file-system -cf "$work/import/base.tar" .
    rm -rf "$work/base"
    printf 'FROM scratch\nADD base.tar /\nCMD ["sh"]\n' >"$work/import/Containerfile"
    build build --quiet --isolation chroot -t base "$work/import" >/dev/null
    base=localhost/base
fi

mkdir "$work/tree" # what git has here, and what it would take
(cd "$root" && git -c safe.directory="$PWD" ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$work/tree")
build build --isolation chroot --build-arg BASE="$base" --build-arg SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-0}" \
    -f "$here/Containerfile" -t crun-launcher "$work/tree"
mkdir -p "$out"
archive=$out/crun-launcher-$version-$(uname -m).oci.tar
rm -f "$archive"
build push -q crun-launcher "oci-archive:$archive:crun-launcher:$version"
echo "$archive"

#!/usr/bin/env bash
# A C compiler for an older glibc than this system's. usage: zig.sh FOLDER [MACHINE]
#
# FOLDER/cc (of another machine than this one: FOLDER/cc-MACHINE) is clang, lld and the stubs of glibc 2.28 out of the project Zig, which PyPI has as
# one wheel. It sees no header of this system's: FOLDER/include has those of libraries that are opened on first use, which are needed, and of
# uthash. What is there already is left as it is.
set -euo pipefail
RELEASE=0.17.1 GLIBC=2.28
dir=$(realpath -m "$1") machine=${2:-$(uname -m)} cc=cc
[ "$machine" = "$(uname -m)" ] || cc=cc-$machine

mkdir -p "$dir/include"/{openssl,hwloc/autogen}
if [ ! -d "$dir/zig-$RELEASE" ]; then
    /usr/bin/python3 -m venv "$dir/venv"
    "$dir/venv/bin/pip" install --quiet --no-deps --target "$dir/zig-$RELEASE.new" "ziglang==$RELEASE"
    mv "$dir/zig-$RELEASE.new" "$dir/zig-$RELEASE"
    rm -r "$dir/venv"
fi
multiarch=/usr/include/$(uname -m)-linux-gnu # these headers are the same for all machines of 64 bits
ln -sf /usr/include/openssl/*.h "$multiarch"/openssl/*.h "$dir/include/openssl/"
ln -sf /usr/include/hwloc/*.h "$dir/include/hwloc/"
ln -sfn "$multiarch/curl" "$dir/include/curl"
ln -sf "$multiarch"/hwloc/autogen/*.h "$dir/include/hwloc/autogen/"
ln -sf /usr/include/{hwloc,microhttpd,uthash,utlist}.h "$dir/include/"

# meson asks what the linker is, and knows no "zig ld": it is lld. Where it asks for the compiler's macros (-E -dM -), clang is given the
# target as it is, and knows no number of glibc in it.
cat >"$dir/$cc" <<CC
#!/bin/sh
export ZIG_GLOBAL_CACHE_DIR=$dir/cache ZIG_LOCAL_CACHE_DIR=$dir/cache
target=$machine-linux-gnu.$GLIBC
case " \$* " in
*" -Wl,--version "*) echo "LLD 22.1.8 (compatible with GNU linkers)"; exit ;;
*" -dM "*) target=$machine-linux-gnu ;;
esac
exec $dir/zig-$RELEASE/ziglang/zig cc -target "\$target" -fno-sanitize=undefined -isystem $dir/include "\$@"
CC
chmod +x "$dir/$cc"
echo "$dir/$cc"

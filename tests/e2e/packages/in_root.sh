#!/bin/sh
# In a fresh Debian (test_deb.py): install the packages in /debs, use them, purge them. Prints "well" at the end.
set -eux
export DEBIAN_FRONTEND=noninteractive HOME=/root LC_ALL=C.UTF-8
ours="crun-launcher rendezvousd libcrun0 libcrun-dev crun-trainer python3-crun-launcher"
missing="is not installed: it is Debian's package crun-trainer-cuda"
if ls /debs/crun-trainer-cuda_*.deb; then
    ours="$ours crun-trainer-cuda"
    missing="the GPU module needs libcudart.so.*, libcublasLt.so.*, libcudnn.so.9*not installed here"
fi

install() { apt-get install -y -qq "$@" >/dev/null; }
purge() { apt-get purge -y -qq --autoremove -o APT::AutoRemove::RecommendsImportant=false -o APT::AutoRemove::SuggestsImportant=false "$@" >/dev/null; }

# What is there, but for what dpkg, apt and the loader remember.
files() {
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /debs -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache \
        -o -path /var/log -o -path "$HOME/.config" -o -path /var/backups \) -prune -o -print | grep -v -e '^/etc/.*-$' -e '^/run/' -e '^/etc/ld.so.cache$' -e '^/etc/hosts$' -e /ca-certificates -e __pycache__ | sort
    find /usr/lib/python3/dist-packages/crun /usr/share/doc/crun-launcher 2>/dev/null || true
    cut -d: -f1 /etc/passwd
}

theirs_is_there() { # the container runtime
    crun --version | grep -q '^crun version'
    [ "$(dpkg -S /usr/bin/crun)" = "crun: /usr/bin/crun" ]
    dpkg --verify crun
}

ours_is_there() {
    crun-launcher --version | grep -q '^crun [0-9]'
    [ "$(env PATH=/usr/lib/crun-launcher/bin:/usr/bin:/bin sh -c 'crun --version')" = "$(crun-launcher --version)" ]
    [ "$(/usr/lib/crun-launcher/bin/crun-launcher --version)" = "$(crun-launcher --version)" ]
    dpkg --verify $ours
    crun-launcher --nproc-per-node 2 --no-log-prefix sh -c 'echo rank $RANK of $WORLD_SIZE' | sort | tr '\n' ' ' | grep -q 'rank 0 of 2 rank 1 of 2'
}

apt-get update -qq
install --no-install-recommends adduser gcc libc6-dev pkg-config gnuplot-nox # what is used here, and may leave things of its own
files >/tmp/before

# Ours after theirs.
install --no-install-recommends crun
install /debs/*.deb
theirs_is_there
ours_is_there
crun-launch --help | grep -q 'Usage: crun-launch '
[ "$(readlink -f /usr/share/man/man1/crun-launch.1.gz)" = /usr/share/man/man1/crun-launcher.1.gz ]

# Several nodes prove to each other who they are: OpenSSL is opened.
crun-launcher --nnodes 2 --rdzv-endpoint 127.0.0.1:29411 --rdzv-id j --local-addr 127.0.0.1 true &
crun-launcher --nnodes 2 --rdzv-endpoint 127.0.0.1:29411 --rdzv-id j --local-addr 127.0.0.1 true
wait $!

# The Python module, also as a function in several processes.
cat >/tmp/job.py <<'P'
import crun


def rank(add):
    crun.report(1)
    crun.barrier()
    return crun.info().rank + add


if __name__ == "__main__":
    assert crun.find_program() == "/usr/bin/crun-launcher", crun.find_program()
    assert crun.launch(rank, (5,), nproc=2) == {0: 5, 1: 6}
P
python3 -B /tmp/job.py

# The library, by pkg-config.
cc -D_GNU_SOURCE -o /tmp/worker /usr/share/doc/libcrun-dev/examples/worker.c $(pkg-config --cflags --libs crun)
crun-launcher --nproc-per-node 2 --no-log-prefix /tmp/worker 5 | grep -q 'rank 1 of 2: hello'

# Training: data, two ranks, a kill, a resume, a picture.
cd /tmp
trainer demo
grep -c '^' runs/demo/run-*/metrics.jsonl
[ "$(head -c 4 runs/demo/run-*/plot.png | tail -c 3)" = PNG ]
cd /

# A GPU that is not there: one sentence, what is missing. The others work on.
said=$(trainer --device cuda --train-data null --image-size 32 --num-labels 10 --epochs 1 2>&1) && exit 1
[ "$(echo "$said" | wc -l)" = 1 ]
case "$said" in *$missing*) ;; *) exit 1 ;; esac

# The daemon as its user, with HTTP: libmicrohttpd is opened.
[ "$(stat -c '%U:%G %a' /etc/rendezvousd)" = "root:rendezvousd 750" ]
getent passwd rendezvousd
setpriv --reuid rendezvousd --regid rendezvousd --clear-groups rendezvousd --port 29412 --http-port 29413 &
python3 -B - <<'P'
import socket, time, urllib.request
end = time.monotonic() + 60
while True:
    try:
        assert urllib.request.urlopen("http://127.0.0.1:29413/healthz", timeout=5).status == 200
        break
    except OSError:
        assert time.monotonic() < end
        time.sleep(0.1)
P
kill $!
wait $!

purge $ours
theirs_is_there
purge crun

# Theirs after ours, and ours gone first or last.
install /debs/*.deb
ours_is_there
install --no-install-recommends crun
theirs_is_there
ours_is_there
purge crun
ours_is_there
purge $ours
files >/tmp/after
diff /tmp/before /tmp/after
echo well

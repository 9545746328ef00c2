#!/bin/sh
# In a fresh Debian 11 (test_wheel.py), whose glibc is 2.31 and whose OpenSSL is 1.1.1: the wheel in /wheel in an environment. Prints "well" at the end.
set -eux
export DEBIAN_FRONTEND=noninteractive HOME=/root LC_ALL=C.UTF-8
apt-get update -qq
apt-get install -y -qq --no-install-recommends python3-venv openssl >/dev/null
python3 -m venv /env
find /env ! -type d | grep -v __pycache__ | sort >/tmp/before
/env/bin/pip install --no-index --no-deps /wheel/*.whl
PATH=/env/bin:$PATH
[ "$(command -v crun)" = /env/bin/crun ]
python3 -B /wheel/job.py /env/bin/crun
crun --nproc-per-node 2 --no-log-prefix sh -c 'echo rank $RANK of $WORLD_SIZE' | sort | tr '\n' ' ' | grep -q 'rank 0 of 2 rank 1 of 2'

# Several nodes prove to each other who they are.
crun --nnodes 2 --rdzv-endpoint 127.0.0.1:29411 --rdzv-id j --local-addr 127.0.0.1 true &
crun --nnodes 2 --rdzv-endpoint 127.0.0.1:29411 --rdzv-id j --local-addr 127.0.0.1 true
wait $!

# And over TLS, at a daemon.
openssl req -x509 -newkey rsa:2048 -nodes -keyout /tmp/key -out /tmp/cert -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 2>/dev/null
echo "tester $(head -c 24 /dev/urandom | base64)" >/tmp/tokens
chmod 600 /tmp/tokens /tmp/key
rendezvousd --port 29412 --token-file /tmp/tokens --tls-cert /tmp/cert --tls-key /tmp/key --tls-only &
daemon=$!
for node in 0 1; do
    crun --nnodes 2 --rdzv-endpoint 127.0.0.1:29412 --rdzv-ca /tmp/cert --token-file /tmp/tokens --rdzv-id t --local-addr 127.0.0.1 sh -c 'echo tls rank $RANK' &
    eval node$node=$!
done
wait $node0
wait $node1
kill $daemon
wait $daemon

/env/bin/pip uninstall -y crun-launcher
find /env ! -type d | grep -v __pycache__ | sort >/tmp/after
diff /tmp/before /tmp/after
echo well

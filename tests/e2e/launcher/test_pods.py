"""The pods of docs/examples/kubernetes.yaml as far as one machine has them: uid 1000, a read-only root, a token of mode 0440, process ids of their own
(crun is number 1 in each), names of 63 characters. They train, one is killed, and the Job's next pods resume. Pod 0, which hosts, is replaced by one
with another address, and the job trains on."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

from crun_run import CRUN
from processes import children, wait
from support import ROOT, TRAINER

sys.path.insert(0, str(ROOT / "tests" / "fault"))
import netns  # noqa: E402

JOB = "t" * 61  # the pods' names end in -0 and -1: 63 characters
FS_GROUP = 2000

POD = r"""set -e
hostname "$POD"
mount --bind "$VOLUMES/hosts" /etc/hosts
for volume in checkpoints "$POD.tmp" token; do mount --bind "$VOLUMES/$volume" "$VOLUMES/$volume"; done
mount -o remount,bind,ro /
mount -t tmpfs tmpfs /dev/shm
exec setpriv --reuid 1000 --regid 1000 --groups %d --no-new-privs --bounding-set=-all \
    env -i PATH="$PATH" KUBERNETES_SERVICE_HOST=10.96.0.1 HOSTNAME="$POD" JOB_COMPLETION_INDEX="${POD##*-}" CRUN_TOKEN_FILE="$VOLUMES/token/token" \
    TMPDIR="$VOLUMES/$POD.tmp" CRUN_TEST_MARK="$CRUN_TEST_MARK" CRUN_RDZV_ENDPOINT="$ENDPOINT" CRUN_RDZV_CONF="is_host=$((1 - ${POD##*-}))" "$@"
""" % FS_GROUP


def can_be_made():
    probe = "mount --bind /etc /etc && mount -o remount,bind,ro / && setpriv --reuid 1000 --regid 1000 --clear-groups true"
    return os.geteuid() == 0 and shutil.which("setpriv") and subprocess.run(
        ["unshare", "--mount", "--uts", "--pid", "--fork", "sh", "-c", probe], capture_output=True, timeout=30).returncode == 0


@pytest.fixture
def volumes(crun, shapes):
    """A folder that uid 1000 can reach."""
    if not can_be_made():
        pytest.skip("no namespaces here, or not root")
    path = pathlib.Path(tempfile.mkdtemp(prefix="crun-pods-"))
    path.chmod(0o755)
    shutil.copytree(shapes(28, 148, 20), path / "data")
    for f in (CRUN, TRAINER):
        shutil.copy(f, path)
    for name in ("checkpoints", "token", f"{JOB}-0.tmp", f"{JOB}-1.tmp"):
        (path / name).mkdir()
        shutil.chown(path / name, 1000, 1000)
    token = path / "token" / "token"
    token.write_text("me 0123456789abcdef0123456789abcdef\n")
    shutil.chown(token, 0, FS_GROUP)
    token.chmod(0o440)
    (path / "hosts").write_text(f"127.0.0.1 localhost\n127.0.0.1 {JOB}-0.train {JOB}-0\n127.0.0.1 {JOB}-1.train {JOB}-1\n")
    yield path
    for p in crun.started:
        kill(p)
    shutil.rmtree(path)


def kill(pod):
    """Process 1 of a pod, and so all of it: what unshare(1) asked the kernel for is undone by the change of users."""
    if pod.poll() is None:
        for pid in children(pod.pid):
            os.kill(pid, signal.SIGKILL)
        pod.wait(30)


def start(crun, volumes, index, endpoint, steps, *more, prefix=()):
    program = [volumes / "trainer", "--arch", "convnet", "--image-size", 28, "--num-channels", 1, "--device", "ref", "--batch-size", 64, "--threads", 1,
               "--train-data", volumes / "data" / "train", "--num-epochs", 1000, "--max-steps", steps, "--checkpoint-dir", volumes / "checkpoints",
               "--checkpoint-every", 2, "--resume", "auto"]
    env = dict(crun.env, VOLUMES=str(volumes), POD=f"{JOB}-{index}", ENDPOINT=endpoint)
    p = subprocess.Popen([*prefix, "unshare", "--mount", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", POD, "sh", volumes / "crun",
                          "--nnodes=2", "--nproc-per-node=1", "--drain-timeout=20", *more, *map(str, program)],
                         env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    crun.started.append(p)
    return p


def steps_of(volumes):
    path = volumes / "checkpoints" / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [m["step"] for m in map(json.loads, lines) if "lr" in m]


def test_two_pods_train_and_their_successors_resume(crun, volumes):
    endpoint = f"{JOB}-0.train:{crun.port()}"
    pods = [start(crun, volumes, i, endpoint, 100000) for i in (0, 1)]
    wait("some steps", lambda: any(p.poll() is not None for p in pods) or len(steps_of(volumes)) > 6)
    assert all(p.poll() is None for p in pods), [p.communicate()[0] for p in pods if p.poll() is not None]
    kill(pods[1])
    out = pods[0].communicate(timeout=60)[0]
    assert pods[0].returncode != 0 and "failed" in out, out
    crun.wait_processes_gone(10)
    before = steps_of(volumes)
    pods = [start(crun, volumes, i, endpoint, max(before) + 4) for i in (0, 1)]
    texts = [p.communicate(timeout=90)[0] for p in pods]
    assert [p.returncode for p in pods] == [0, 0], texts
    assert max(steps_of(volumes)) == max(before) + 4 and f"{JOB}-" in "".join(texts + [out])
    assert all(pathlib.Path(f).stat().st_uid == 1000 for f in (volumes / "checkpoints").iterdir())
    crun.wait_processes_gone(10)


@pytest.fixture
def net():
    why = netns.available()
    if why:
        pytest.skip(why)
    n = netns.Net(3)
    yield n
    n.close()


def name_pods(volumes, addresses):
    """What the headless Service answers."""
    lines = [f"{addr} {JOB}-{i}.train {JOB}-{i}\n" for i, addr in enumerate(addresses)]
    (volumes / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))


@pytest.mark.serial
@pytest.mark.long
def test_a_job_trains_on_when_pod_0_is_replaced(crun, volumes, net):
    endpoint = f"{JOB}-0.train:29400"
    hosts = net.hosts
    name_pods(volumes, [hosts[0].addr, hosts[1].addr])
    pods = [start(crun, volumes, i, endpoint, 1000000, "--max-restarts=3", prefix=hosts[i].prefix()) for i in (0, 1)]
    wait("some steps", lambda: any(p.poll() is not None for p in pods) or len(steps_of(volumes)) > 6)
    assert all(p.poll() is None for p in pods), [p.communicate()[0] for p in pods if p.poll() is not None]
    kill(pods[0])
    hosts[0].cut()  # a node that is lost says nothing any more
    before = max(steps_of(volumes))
    name_pods(volumes, [hosts[2].addr, hosts[1].addr])
    pods[0] = start(crun, volumes, 0, endpoint, 1000000, "--max-restarts=3", prefix=hosts[2].prefix())
    wait("more steps", lambda: any(p.poll() is not None for p in pods) or max(steps_of(volumes)) > before + 6)
    for p in pods:
        for pid in children(p.pid):
            os.kill(pid, signal.SIGTERM)
    texts = [p.communicate(timeout=90)[0] for p in pods]
    assert [p.returncode for p in pods] == [75, 75], texts
    assert "the workers here were ended" in texts[1], texts
    crun.wait_processes_gone(10)

"""The container image: made without a registry, its root run by bubblewrap as uid 1000 without capabilities, read-only, once where clone3 is no call of the
kernel's; two pods of it train, one is killed, and their successors resume from the volume."""
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import tarfile
import tempfile

import pytest

from processes import children, wait
from support import ROOT, run

pytestmark = [pytest.mark.slow, pytest.mark.serial]
FS_GROUP = 2000
NO_BASE = 3  # of packaging/image/image.sh
USER = ["setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups", "--no-new-privs"]


def usable():
    return os.geteuid() == 0 and all(map(shutil.which, ("debootstrap", "buildah", "bwrap", "setpriv"))) and run(
        *USER, "bwrap", "--unshare-all", "--ro-bind", "/", "/", "true").returncode == 0


class Image:
    def __init__(self, archive, folder):
        def blob(digest):
            return tar.extractfile("blobs/" + digest.replace(":", "/"))

        self.root = folder / "root"
        with tarfile.open(archive) as tar:
            manifest = json.load(blob(json.load(tar.extractfile("index.json"))["manifests"][0]["digest"]))
            self.config = json.load(blob(manifest["config"]["digest"]))["config"]
            for layer in manifest["layers"]:
                with tarfile.open(fileobj=blob(layer["digest"]), mode="r:*") as files:
                    for f in files:
                        name = os.path.basename(f.name)
                        if name.startswith(".wh."):
                            gone = self.root / os.path.dirname(f.name) / name.removeprefix(".wh.")
                            shutil.rmtree(gone) if gone.is_dir() and not gone.is_symlink() else gone.unlink(missing_ok=True)
                        else:
                            files.extract(f, self.root, numeric_owner=True)
        for name in ("volume", "data", "checkpoints", "run/crun"):  # where volumes go: a container's runtime makes them, too
            (self.root / name).mkdir()

    def command(self, *more, env=()):
        """bwrap with this root; more: its other options."""
        pairs = [pair.split("=", 1) for pair in self.config["Env"]] + list(env)
        return ["bwrap", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--ro-bind", self.root, "/", "--proc", "/proc", "--dev", "/dev",
                "--perms", "1777", "--tmpfs", "/dev/shm", "--perms", "1777", "--tmpfs", "/tmp", "--chdir", self.config["WorkingDir"], "--clearenv",
                *(word for name, value in pairs for word in ("--setenv", name, value)), *more]


@pytest.fixture(scope="module")
def image():
    if not usable():
        pytest.skip("needs root, debootstrap, buildah and bubblewrap")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="crun-image-", dir="/var/tmp"))
    folder.chmod(0o755)
    p = run(ROOT / "dev", "image", folder, timeout=1800)
    if p.returncode == NO_BASE:
        pytest.skip(f"debootstrap reaches no mirror here: {p.stderr[-300:]}")
    assert p.returncode == 0, p.stdout[-3000:] + p.stderr[-3000:]
    archive, = folder.glob("*.oci.tar")
    yield Image(archive, folder)
    shutil.rmtree(folder)


def test_what_it_says_of_itself(image):
    assert image.config["User"] == "1000:1000" and image.config["Entrypoint"] == ["crun"]
    assert not (image.root / "debs").exists() and not (image.root / "src").exists() and not list((image.root / "usr/include").glob("crun.h"))


def without_clone3():
    """A seccomp filter: clone3 (435 on every architecture) is answered ENOSYS, as older container runtimes do."""
    program = b"".join(struct.pack("=HBBI", *i) for i in ((0x20, 0, 0, 0), (0x15, 0, 1, 435), (0x06, 0, 0, 0x00050000 | 38), (0x06, 0, 0, 0x7fff0000)))
    f = tempfile.TemporaryFile()
    f.write(program)
    f.seek(0)
    return f


@pytest.mark.parametrize("old", [False, True])
def test_an_ordinary_user_without_capabilities_runs_it(image, old):
    with without_clone3() as f:
        seccomp = ["--seccomp", str(f.fileno())] if old else []
        p = run(*USER, *image.command("--unshare-user", "--uid", "1000", "--gid", "1000", "--unshare-net", *seccomp), *image.config["Entrypoint"],
                "--nproc-per-node", 2, "--max-restarts", 1, "--no-log-prefix", "sh", "-c",
                'test ! -w / && echo rank $RANK of $WORLD_SIZE, round $TORCHELASTIC_RESTART_COUNT && [ $RANK$TORCHELASTIC_RESTART_COUNT != 10 ]',
                pass_fds=[f.fileno()])
    assert p.returncode == 0 and "rank 0 of 2, round 1\n" in p.stdout and "rank 1 of 2, round 1\n" in p.stdout, p.stderr


@pytest.fixture
def pods(image, crun):
    """start(index, steps) -> process; volume: of checkpoints"""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="crun-pods-"))
    folder.chmod(0o755)
    for name in ("token", "checkpoints"):
        (folder / name).mkdir()
    shutil.chown(folder / "checkpoints", 1000, 1000)
    token = folder / "token" / "token"
    token.write_text("me 0123456789abcdef0123456789abcdef\n")
    shutil.chown(token, 0, FS_GROUP)
    token.chmod(0o440)
    (folder / "hosts").write_text("127.0.0.1 localhost train-0.train train-1.train train-0 train-1\n")
    p = run(*image.command("--bind", folder, "/volume"), "trainer", "make-data", "shapes", "--out", "/volume/data", "--classes", 3, "--train-images", 96,
            "--test-images", 12, "--image-size", 32)
    assert p.returncode == 0, p.stderr
    port = crun.port()

    def start(index, steps):
        env = [("KUBERNETES_SERVICE_HOST", "10.96.0.1"), ("HOSTNAME", f"train-{index}"), ("JOB_COMPLETION_INDEX", str(index)), ("CRUN_TOKEN_FILE", "/run/crun/token"),
               ("CRUN_RDZV_ENDPOINT", f"train-0.train:{port}"), ("CRUN_RDZV_CONF", f"is_host={1 - index}"), ("STARTED_BY_TEST", os.environ["STARTED_BY_TEST"])]
        command = [*image.command("--hostname", f"train-{index}", "--ro-bind", folder / "token", "/run/crun", "--bind", folder / "checkpoints", "/checkpoints",
                                  "--ro-bind", folder / "data", "/data", "--ro-bind", folder / "hosts", "/etc/hosts", "--cap-add", "ALL", env=env),
                   "setpriv", "--reuid", "1000", "--regid", "1000", "--groups", FS_GROUP, "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all",
                   *image.config["Entrypoint"], "--nnodes=2", "--nproc-per-node=1", "trainer", "--train-data", "/data/train", "--arch", "resnet18", "--image-size", 32,
                   "--batch-size", 16, "--threads", 1, "--num-epochs", 1000, "--max-steps", steps, "--checkpoint-dir", "/checkpoints", "--checkpoint-every", 2, "--resume", "auto"]
        p = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        started.append(p)
        return p

    started = []
    start.volume = folder / "checkpoints"
    yield start
    for p in started:
        evict(p)
    shutil.rmtree(folder)


def evict(pod):
    """SIGKILL to process 1 of its pid namespace, and so to all of it."""
    if pod.poll() is None:
        for pid in children(pod.pid):
            os.kill(pid, signal.SIGKILL)
        pod.wait(30)


def steps_of(volume):
    path = volume / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [m["step"] for m in map(json.loads, lines) if "lr" in m]


def test_two_pods_train_one_is_evicted_and_their_successors_resume(pods):
    running = [pods(i, 100000) for i in (0, 1)]
    wait("some steps", lambda: any(p.poll() is not None for p in running) or len(steps_of(pods.volume)) > 6)
    assert all(p.poll() is None for p in running), [p.communicate(timeout=30)[0] for p in running if p.poll() is not None]
    evict(running[1])
    out = running[0].communicate(timeout=60)[0]
    assert running[0].returncode != 0 and "failed" in out, out
    before = max(steps_of(pods.volume))
    running = [pods(i, before + 4) for i in (0, 1)]
    texts = [p.communicate(timeout=120)[0] for p in running]
    assert [p.returncode for p in running] == [0, 0], texts
    assert "resumed from step" in texts[0] + texts[1] and max(steps_of(pods.volume)) == before + 4
    assert {f.stat().st_uid for f in pods.volume.iterdir()} == {1000}

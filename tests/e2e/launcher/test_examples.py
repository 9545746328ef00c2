"""The examples of docs/examples: they are what their languages take, and crun understands what the schedulers say there."""
import pathlib
import re
import shlex
import subprocess

import pytest

from crun_run import CRUN, REPO
from support import TRAINER

EXAMPLES = pathlib.Path(REPO) / "docs" / "examples"


@pytest.fixture
def clean(crun):
    for name in list(crun.env):
        if name.startswith(("CRUN_R", "CRUN_N", "PET_", "SLURM_", "PBS_", "OMPI_", "PMIX_", "KUBERNETES_")):
            del crun.env[name]
    script = crun.tmp / "train.py"
    script.write_text("")
    return crun


def crun_lines(text):
    """The arguments of each crun in a script of a shell, its variables still in."""
    joined = re.sub(r"\\\n\s*", " ", text)
    found = [line[line.index("crun-launcher "):] for line in joined.splitlines() if re.match(r"\s*(srun .*|mpirun .*)?\bcrun-launcher ", line)]
    assert found
    return [shlex.split(line)[1:] for line in found]


def plan(crun, args, env):
    """-> first line of --dry-run, and all of it"""
    args = [re.sub(r"\$\{?(\w+)\}?", lambda m: env.get(m[1], "/tmp"), a) for a in args]
    args = ["2" if a == "gpu" else a for a in args]  # there may be none here
    rc, out, err = crun.run("--dry-run", *args, cwd=crun.tmp, extra_env=env)
    assert rc == 0, err
    return out.splitlines()[0], out


@pytest.mark.parametrize("name", ["slurm.sbatch", "pbs.sh", "mpirun.sh"])
def test_scripts_are_what_bash_takes(name):
    p = subprocess.run(["bash", "-n", EXAMPLES / name], capture_output=True, text=True, timeout=30)
    assert (p.returncode, p.stderr) == (0, "")


def test_the_slurm_example(clean):
    text = (EXAMPLES / "slurm.sbatch").read_text()
    for node in (0, 1):
        env = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_NODEID": str(node), "SLURM_JOB_NODELIST": "gpu[03-04]",
               "SLURM_STEP_NODELIST": "gpu[03-04]", "SLURM_JOB_NUM_NODES": "2"}
        first, out = plan(clean, *crun_lines(text), env)
        assert re.fullmatch(r"job 4711\.0: 2 workers on this node, 2 nodes, rendezvous tcp at gpu03:\d+ \(Slurm\)", first)
        assert f"    GROUP_RANK={node}\n" in out and f"    RANK={2 * node}\n" in out
    grace = int(re.search(r"--signal=USR1@(\d+)", text)[1])
    assert "--preemption-signal SIGUSR1" in text and int(re.search(r"--drain-timeout (\d+)", text)[1]) < grace


@pytest.mark.parametrize("code, again", [(75, True), (0, False), (3, False)])
@pytest.mark.parametrize("name, requeue", [("pbs.sh", "qrerun 815.server"), ("slurm.sbatch", "scontrol requeue 4711")])
def test_a_job_that_stopped_in_good_order_is_started_again(clean, name, requeue, code, again):
    """With stand-ins for crun and the scheduler's own programs."""
    for tool, text in (("crun-launcher", f"exit {code}"), ("srun", f"exit {code}"), ("qrerun", f'echo qrerun "$@" >> {clean.tmp}/told'),
                       ("scontrol", f'echo scontrol "$@" >> {clean.tmp}/told')):
        (clean.tmp / tool).write_text(f"#!/bin/sh\n{text}\n")
        (clean.tmp / tool).chmod(0o755)
    env = dict(clean.env, PATH=f"{clean.tmp}:{clean.env['PATH']}", PBS_JOBID="815.server", PBS_O_WORKDIR=str(clean.tmp), PBS_NODEFILE="nodes",
               SLURM_JOB_ID="4711", SLURM_JOB_NUM_NODES="2")
    p = subprocess.run(["bash", EXAMPLES / name], cwd=clean.tmp, env=env, capture_output=True, text=True, timeout=30)
    told = (clean.tmp / "told").read_text().splitlines() if (clean.tmp / "told").exists() else []
    assert p.returncode == code and told == ([requeue] if again else []), p.stderr


def test_the_pbs_example(clean):
    nodes = clean.tmp / "nodefile"
    nodes.write_text("n1.cluster\n" * 8 + "n2.cluster\n" * 8)
    env = {"PBS_JOBID": "815.server", "PBS_NODEFILE": str(nodes)}
    _, out = plan(clean, *crun_lines((EXAMPLES / "pbs.sh").read_text()), env)
    assert "host n1.cluster, node rank 0\n" in out and "host n2.cluster, node rank 1\n" in out
    assert out.count(" --nproc-per-node=8 --rdzv-id=815.server ") == 2 and out.count(" --rdzv-endpoint=n1.cluster:") == 2
    first, _ = plan(clean, ["--nnodes", "2", "train.py"], env | {"PBS_NODENUM": "1"})
    assert re.fullmatch(r"job 815\.server: 1 workers on this node, 2 nodes, rendezvous tcp at n1\.cluster:\d+ \(PBS\)", first)


@pytest.mark.parametrize("env,host,job", [
    ({"OMPI_MCA_ess_base_jobid": "265", "OMPI_MCA_orte_hnp_uri": "264.0;tcp://10.0.0.1,10.1.0.1:49511"}, "10.0.0.1", "265"),
    ({"PMIX_NAMESPACE": "prterun-head-7-4711@1"}, "head-7", "prterun-head-7-4711@1")])
def test_the_open_mpi_example(clean, env, host, job):
    first, _ = plan(clean, *crun_lines((EXAMPLES / "mpirun.sh").read_text()), env | {"OMPI_COMM_WORLD_RANK": "1"})
    assert re.fullmatch(rf"job {job}: 2 workers on this node, 2 nodes, rendezvous tcp at {host}:\d+ \(Open MPI\)", first)


def check_pod(spec, program):
    """The Job's pods run in a namespace that enforces the restricted standard. -> crun's command"""
    pod = spec["template"]["spec"]
    container, = pod["containers"]
    command = container.get("command", [program]) + container.get("args", [])
    if "completions" in spec:  # else Kubeflow says how many
        assert spec["completionMode"] == "Indexed" and f"--nnodes={spec['completions']}" in command and spec["completions"] == spec["parallelism"]
    assert pod["restartPolicy"] == "Never"
    rules = spec["podFailurePolicy"]["rules"]
    assert all(rule["onExitCodes"]["containerName"] == container["name"] for rule in rules if "onExitCodes" in rule)
    assert any(c["type"] == "DisruptionTarget" and rule["action"] == "Ignore" for rule in rules for c in rule.get("onPodConditions", []))
    ports = {container[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe")}
    assert ports == {9420} and "--http-port=9420" in command
    volumes = {v["name"]: v for v in pod["volumes"]}
    mounts = {m["mountPath"]: m["name"] for m in container["volumeMounts"]}
    assert volumes[mounts["/run/crun"]]["secret"]["defaultMode"] == 0o440 and pod["securityContext"]["fsGroup"], "uid 1000 reads it by its group"
    assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory" and all("persistentVolumeClaim" in volumes[m] for p, m in mounts.items() if p == "/checkpoints")
    mine, pods = container["securityContext"], pod["securityContext"]
    assert pods["runAsNonRoot"] and mine["readOnlyRootFilesystem"] and "/tmp" in mounts
    assert pods["seccompProfile"] == {"type": "RuntimeDefault"} and mine["allowPrivilegeEscalation"] is False and mine["capabilities"] == {"drop": ["ALL"]}
    drain = int(re.search(r"--drain-timeout=(\d+)", " ".join(command))[1])
    assert drain + 20 <= pod["terminationGracePeriodSeconds"], "the kill and the report need some time, too"
    assert set(mounts.values()) == set(volumes) and command[0] == program
    return command[1:]


def check_plan(clean, command, job, pod, host):
    first, out = plan(clean, command, {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": pod, "KUBERNETES_SERVICE_HOST": "10.96.0.1"})
    assert re.fullmatch(rf"job {job}: 8 workers on this node, 2 nodes, rendezvous tcp at {host}[\w.-]*:\d+ \(Kubernetes\)", first)
    assert "    GROUP_RANK=1\n" in out and "    RANK=8\n" in out


def test_the_kubernetes_example(clean):
    yaml = pytest.importorskip("yaml")
    service, job = yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    command = [a.replace("/opt/crun/train.py", "train.py") for a in check_pod(job["spec"], "/opt/crun/bin/crun")]
    check_plan(clean, command, "train", "train-1", "train-0")
    elastic = ["--nnodes=1:8" if a == "--nnodes=2" else a for a in command]
    first, _ = plan(clean, elastic, {"JOB_COMPLETION_INDEX": "5", "HOSTNAME": "train-5", "KUBERNETES_SERVICE_HOST": "10.96.0.1"})
    assert "1 to 8 nodes" in first


def test_the_jobset_example(clean):
    yaml = pytest.importorskip("yaml")
    jobs = yaml.safe_load((EXAMPLES / "jobset.yaml").read_text())
    replicated, = jobs["spec"]["replicatedJobs"]
    assert replicated["replicas"] == 1 and jobs["spec"]["network"]["enableDNSHostnames"] and jobs["spec"]["network"]["publishNotReadyAddresses"]
    command = [TRAINER if a == "trainer" else a for a in check_pod(replicated["template"]["spec"], "crun")]
    check_plan(clean, list(map(str, command)), "train-workers-0", "train-workers-0-1", "train-workers-0-0")


def check_lease(clean, spec, program, owner, env):
    """Such pods meet at a Lease, which goes with its owner: (its labels, what they say). -> the first line of crun's plan"""
    container, = spec["template"]["spec"]["containers"]
    said = {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "train-1", "KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443", **env}
    files = clean.tmp / "account"
    files.mkdir()
    for name in ("token", "ca.crt", "namespace"):
        (files / name).write_text("default")
    for var in container["env"]:
        label = re.search(r"metadata\.labels\['(.*)'\]", var.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", ""))
        said[var["name"]] = owner[0][label[1]] if label else re.sub(r"\$\((\w+)\)", lambda m: said[m[1]], var["value"])
    assert said["CRUN_K8S_OWNER"] == owner[1]
    said.update(CRUN_K8S_FILES=str(files), HOME=str(clean.tmp), CRUN_TOKEN_FILE=str(clean.tmp / "none"))
    command = [re.sub(r"\$\((\w+)\)", lambda m: said[m[1]], a) for a in check_pod(spec, program)]
    command = ["train.py" if a == "trainer" or a.endswith("train.py") else a for a in command]
    return plan(clean, command, said)[0]


def test_two_daemons_behind_one_name(clean):
    yaml = pytest.importorskip("yaml")
    service, deployment = list(yaml.safe_load_all((EXAMPLES / "rendezvousd.yaml").read_text()))[-2:]
    pod = deployment["spec"]["template"]
    container, = pod["spec"]["containers"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items() and deployment["spec"]["replicas"] == 2
    assert service["spec"]["ports"][0]["port"] == container["ports"][0]["containerPort"] == 29400  # the default
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": 9410} and "--http-port=9410" in container["command"]
    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 2 and "--state=k8s://rendezvousd" in container["command"]


SET = {"jobset.sigs.k8s.io/jobset-name": "train", "jobset.sigs.k8s.io/jobset-uid": "8a7c"}


def test_the_examples_that_meet_at_a_lease(clean):
    yaml = pytest.importorskip("yaml")
    job = list(yaml.safe_load_all((EXAMPLES / "kubernetes-lease.yaml").read_text()))[-1]
    first = check_lease(clean, job["spec"], "/opt/crun/bin/crun", ({"controller-uid": "8a7c"}, "batch/v1,Job,train,8a7c"), {})
    assert re.fullmatch(r"job train: 8 workers on this node, 2 nodes, rendezvous k8s at k8s://train \(--rdzv-endpoint\)", first)


@pytest.mark.parametrize("name", ["jobset-lease", "trainingruntime"])
def test_the_sets_that_meet_at_a_lease(clean, name):
    yaml = pytest.importorskip("yaml")
    last = list(yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text()))[-1]
    kubeflow = last["kind"] == "TrainingRuntime"
    spec = last["spec"]["template"]["spec"] if kubeflow else last["spec"]
    replicated, = spec["replicatedJobs"]
    if kubeflow:
        assert replicated["name"] == "node" and replicated["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    env = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "8", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "train-node-0-0.train", "PET_MASTER_PORT": "29400"}
    first = check_lease(clean, replicated["template"]["spec"], "crun", (SET, "jobset.x-k8s.io/v1alpha2,JobSet,train,8a7c"), env if kubeflow else {})
    assert re.fullmatch(r"job train: 8 workers on this node, 2 nodes, rendezvous k8s at k8s://train \(--rdzv-endpoint\)", first)

"""A Lease of a Kubernetes API as the home of a rendezvous. Daily over a stand-in, which is checked against answers of the real kube-apiserver; with
KUBE_APISERVER=FILE (built from Debian's source package kubernetes) the same over that."""
import json
import os
import subprocess
import time

import pytest
import yaml

from cluster import WAIT, kill_and_wait, wait
from support import BUILD, CRUN, ROOT
from test_elected import CONF, leader_of
from test_etcd import BOUND, leads

pytestmark = pytest.mark.serial
REAL = pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["stand-in", "kube-apiserver"])
EXAMPLES = {p.stem: list(yaml.safe_load_all(p.read_text())) for p in (ROOT / "docs" / "examples").glob("*.yaml")}
RULES = [(verb, resource) for d in EXAMPLES["kubernetes-lease"] if d["kind"] == "Role" for r in d["rules"] for resource in r["resources"] for verb in r["verbs"]]
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
MAPS = "/api/v1/namespaces/default/configmaps"


def lease(name, version=None, note="b"):
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": name, "annotations": {"a": note}, **({"resourceVersion": version} if version else {})}, "spec": {"holderIdentity": "me"}}


def config_map(name, text):
    return {"apiVersion": "v1", "kind": "ConfigMap", "immutable": True, "metadata": {"name": name, "labels": {"l": "v"}}, "data": {"text": text}}


@REAL
def test_the_api_answers_as_it_was_recorded(cluster, real):
    """Recorded of kube-apiserver 1.20.2."""
    k = cluster.kubernetes(real=real, rules=[("get", "leases")])

    def ask(*args, **kw):
        status, o = k.ask(*args, **kw)
        return status, o.get("reason") if status >= 300 else o["kind"]

    assert ask("GET", f"{LEASES}/one") == (404, "NotFound")
    status, made = k.ask("POST", LEASES, lease("one"))
    assert status == 201 and made["metadata"]["annotations"] == {"a": "b"}
    version = made["metadata"]["resourceVersion"]
    assert ask("POST", LEASES, lease("one")) == (409, "AlreadyExists")
    status, o = k.ask("PUT", f"{LEASES}/one", lease("one", version))
    assert (status, o["metadata"]["resourceVersion"]) == (200, version)  # nothing is changed, so it is no write
    assert ask("PUT", f"{LEASES}/one", lease("one", version, "c")) == (200, "Lease")
    assert ask("PUT", f"{LEASES}/one", lease("one", version, "d")) == (409, "Conflict")
    assert ask("PUT", f"{LEASES}/two", lease("two", version)) == (201, "Lease")  # one that is gone comes back
    assert ask("DELETE", f"{LEASES}/one", {"preconditions": {"resourceVersion": version}}) == (409, "Conflict")
    assert ask("GET", f"{LEASES}/one", token="nobody") == (401, "Unauthorized")
    wait("the Role", lambda: ask("GET", f"{LEASES}/one", token="weak") == (200, "Lease"))
    status, o = k.ask("DELETE", f"{LEASES}/one", token="weak")
    assert status == 403 and 'User "weak" cannot delete resource "leases" in API group "coordination.k8s.io" in the namespace "default"' in o["message"], o
    assert ask("POST", MAPS, config_map("big", "x" * 1048577)) == (422, "Invalid")
    assert ask("POST", MAPS, config_map("small", "x")) == (201, "ConfigMap")
    status, o = k.ask("GET", f"{MAPS}?labelSelector=l%3Dv")
    assert (status, [i["metadata"]["name"] for i in o["items"]]) == (200, ["small"])
    assert ask("DELETE", f"{LEASES}/one", {"preconditions": {"resourceVersion": k.lease("one")[1]["metadata"]["resourceVersion"]}})[0] == 200
    assert ask("GET", f"{LEASES}/one") == (404, "NotFound")


@REAL
def test_it_keeps_its_promises(cluster, real):
    k = cluster.kubernetes(real=real)
    if real:
        assert k.ask("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "space"}})[0] == 201
    kept, text = keeps_its_promises(cluster, k, k.pod(cluster.tmp))
    assert kept, text


def args_of(*more):
    return ["--rdzv-endpoint", "k8s://job", "--rdzv-conf", CONF, "--log-level", "info", *more]


@REAL
def test_four_pods_go_on_without_the_one_that_led_and_leave_nothing(cluster, real):
    k = cluster.kubernetes(rules=RULES, real=real)
    pod = k.pod(cluster.tmp, "weak")
    nodes = [cluster.node(*args_of("--nnodes", "3:4", "--max-restarts", 3), env=pod) for _ in range(4)]
    first, _ = cluster.wait_round(4)
    leader = leader_of(nodes)
    start = time.monotonic()
    kill_and_wait(leader)
    again, _ = cluster.wait_round(3, after=first)
    took = time.monotonic() - start
    print(f"the leader killed, to the next round: {took:.2f} s")
    assert again == first + 1 and 4 < took < BOUND + 3  # a loaded machine's
    cluster.finish(*(n for n in nodes if n is not leader))
    assert k.lease("job")[0] == 404
    assert not k.ask("GET", f"{MAPS}?labelSelector=crun%2Flease%3Djob")[1]["items"]


def may_be_away(k):
    """From its second renewal on that hears enough nodes a leader may go on without the API."""
    wait("a claim with a time away", lambda: " away=" in k.lease("job")[1]["metadata"]["annotations"]["crun/claim"])
    before = k.lease("job")[1]["metadata"]["resourceVersion"]
    wait("the next renewal", lambda: k.lease("job")[1]["metadata"]["resourceVersion"] != before)


@pytest.mark.slow
def test_the_api_starts_again_twenty_times_and_costs_nothing(cluster):
    k = cluster.kubernetes(real=True)
    nodes = [cluster.node(*args_of("--nnodes", "2:3", "--max-restarts", 3), env=k.pod(cluster.tmp)) for _ in range(3)]
    first, _ = cluster.wait_round(3)
    renewed = lambda: (k.lease("job")[1] or {}).get("metadata", {}).get("resourceVersion")
    away = []
    may_be_away(k)
    for _ in range(20):
        before, start = wait("the Lease", renewed), time.monotonic()
        k.kill()
        k.start()
        away.append(time.monotonic() - start)
        wait("a renewal", lambda before=before: renewed() not in (None, before))
        time.sleep(1.5)  # the next one, with its time away
    print(f"the API was away for {min(away):.1f} to {max(away):.1f} s; {leads(nodes)} leaders in all")
    assert list(cluster.rounds()) == [first], [n.text() for n in nodes]
    assert leads(nodes) <= 3
    nodes[0].kill_agent()
    cluster.wait_round(2, after=first)
    cluster.finish(*nodes[1:])


def test_without_the_api_workers_go_on(cluster):
    """It gives no answer at all, for longer than a claim and a silence last."""
    k = cluster.kubernetes()
    nodes = [cluster.node(*args_of("--nnodes", 2, "--max-restarts", 3), env=k.pod(cluster.tmp)) for _ in range(2)]
    first, _ = cluster.wait_round(2)
    may_be_away(k)
    k.process.send_signal(19)  # SIGSTOP
    time.sleep(9)
    k.process.send_signal(18)
    before = k.lease("job")[1]["metadata"]["resourceVersion"]
    wait("renewals", lambda: k.lease("job")[1]["metadata"]["resourceVersion"] != before)
    assert list(cluster.rounds()) == [first] and leads(nodes) == 1, [n.text() for n in nodes]
    cluster.finish()


@pytest.mark.slow
@REAL
def test_pods_are_killed_twenty_times_over_a_lease(cluster, real):
    """Any of four, the one that leads every second time."""
    k = cluster.kubernetes(rules=RULES, real=real)
    pod = k.pod(cluster.tmp, "weak")
    one = lambda: cluster.node(*args_of("--nnodes", "3:4", "--max-restarts", 99), env=pod)
    nodes, took = [one() for _ in range(4)], {True: [], False: []}
    at, _ = cluster.wait_round(4)
    for i in range(20):
        leader = leader_of(nodes)
        victim = leader if i % 2 else next(n for n in nodes if n is not leader)
        start = time.monotonic()
        kill_and_wait(victim)
        again, _ = cluster.wait_round(3, after=at)
        took[victim is leader].append(time.monotonic() - start)
        assert again == at + 1
        nodes.remove(victim)
        nodes.append(one())
        at, _ = cluster.wait_round(4, after=again)
    for what, times in (("the leader", took[True]), ("another", took[False])):
        print(f"{what} killed, to the next round: {sorted(times)[len(times) // 2]:.2f} s, {max(times):.2f} s at most, of {len(times)}")
    cluster.finish(*nodes)
    assert k.lease("job")[0] == 404


def test_a_rule_that_is_missing_is_named(cluster):
    k = cluster.kubernetes(rules=[r for r in RULES if r != ("update", "leases")])
    args = ["--rdzv-endpoint", "k8s://job", "--rdzv-conf", "join_timeout=5"]
    nodes = [cluster.node(*args, "--nnodes", 2, env=k.pod(cluster.tmp, "weak"), program=["true"]) for _ in range(2)]
    assert [n.wait() for n in nodes] == [69, 69], nodes[0].text()
    assert any('cannot update resource "leases"' in n.text() and "add that rule to the Role" in n.text() for n in nodes), nodes[0].text()


def keeps_its_promises(cluster, k, pod):
    """Every promise, with that pod's rules; and all that leaders wrote is gone again."""
    p = subprocess.run([BUILD / "tests" / "common" / "test_rdzv_kube_real"], env=dict(cluster.env, **pod), timeout=WAIT, check=False,
                       capture_output=True, text=True)
    left = k.ask("GET", "/api/v1/namespaces/space/configmaps?labelSelector=crun%2Flease%3Dtidy")[1]["items"]
    return p.returncode == 0 and not left, p.stdout + p.stderr + "".join(o["metadata"]["name"] for o in left)


@pytest.mark.parametrize("missing", [(), *RULES], ids=" ".join)
def test_each_rule_of_the_examples_is_needed_and_no_other(cluster, missing):
    k = cluster.kubernetes(rules=[r for r in RULES if r != missing])
    kept, text = keeps_its_promises(cluster, k, k.pod(cluster.tmp, "weak"))
    assert kept == (not missing), text


def test_the_examples_ask_for_the_same_rules():
    roles = [d["rules"] for name in ("kubernetes-lease", "jobset-lease", "rendezvousd", "trainingruntime") for d in EXAMPLES[name] if d["kind"] == "Role"]
    assert len(roles) == 4 and all(r == roles[0] for r in roles)


@pytest.mark.slow
def test_the_api_takes_the_examples_and_their_service_account_is_enough(cluster):
    """Of a JobSet and a TrainingRuntime all but these themselves, which a bare API does not know."""
    k = cluster.kubernetes(real=True)
    for name, documents in EXAMPLES.items():
        k.apply([{**d, "metadata": {**d["metadata"], "name": f"{name}-{d['metadata']['name']}"}} for d in documents])
    k.apply(EXAMPLES["kubernetes-lease"])
    pod = k.pod(cluster.tmp)
    (cluster.tmp / "pod-secret" / "token").write_text(k.token_of("train"))
    job = k.ask("GET", "/apis/batch/v1/namespaces/default/jobs/train")[1]
    uid = job["metadata"]["uid"]
    nodes = [cluster.node(*args_of("--nnodes", 2), env=dict(pod, CRUN_K8S_OWNER=f"batch/v1,Job,train,{uid}")) for _ in range(2)]
    cluster.wait_round(2)
    assert k.lease("job")[1]["metadata"]["ownerReferences"] == [{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": uid}]
    cluster.finish(*nodes)
    assert k.lease("job")[0] == 404


def test_outside_of_a_cluster_it_is_said(cluster):
    node = cluster.node(*args_of("--nnodes", 2), program=["true"])
    assert node.wait() == 2 and "this is no pod" in node.text(), node.text()


def test_the_status_is_that_of_the_leader(cluster):
    pod = cluster.kubernetes().pod(cluster.tmp)
    nodes = [cluster.node(*args_of("--nnodes", 2), env=pod) for _ in range(2)]
    cluster.wait_round(2)
    p = subprocess.run([CRUN, "status", "--rdzv-endpoint", "k8s://job", "--json", "job"], capture_output=True, text=True, check=False, timeout=WAIT,
                       env=dict(cluster.env, **pod))
    assert p.returncode == 0 and len(json.loads(p.stdout)["nodes"]) == len(nodes), p.stderr
    cluster.finish()


def test_the_owner_takes_all_of_it_along(cluster):
    k = cluster.kubernetes()
    env = dict(k.pod(cluster.tmp), CRUN_K8S_OWNER="batch/v1,Job,train,8a7c")
    cluster.node(*args_of("--nnodes", 1), env=env)
    cluster.wait_round(1)
    _, o = k.lease("job")
    assert o["metadata"]["ownerReferences"] == [{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "8a7c"}], o
    assert os.path.basename(o["spec"]["holderIdentity"])
    cluster.finish()

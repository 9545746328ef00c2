"""A job whose rendezvous is a Redis, and what befalls that Redis. Each test says what users see and what becomes of the workers."""
import shutil
import socket
import subprocess
import time

import pytest

from cluster import free_port, wait

if not shutil.which("redis-server"):
    pytest.skip("no redis-server", allow_module_level=True)


def two_nodes(cluster, url, *more, env=()):
    for _ in range(2):
        cluster.node("--nnodes", 2, "--nproc_per_node", 2, "--rdzv_endpoint", url, "--rdzv_id", "job", "--local-addr",
                     "127.0.0.1", "--max-restarts", 5, "--log-level", "info", *more, env=env)


def said(cluster, text):
    def look():
        return all(text in n.text() for n in cluster.nodes)

    try:
        wait(f"the message '{text}'", look)
    except AssertionError as e:
        raise AssertionError(str(e) + "\n" + "\n---\n".join(n.text() for n in cluster.nodes)) from None


def runs(cluster, url, *more, env=()):
    """A job of two nodes, once it is in a round: its number."""
    two_nodes(cluster, url, *more, env=env)
    return cluster.wait_round(4)[0]


def runs_to_its_end(cluster, url, *more, env=()):
    runs(cluster, url, *more, env=env)
    cluster.finish()
    cluster.nodes.clear()


def goes_on(cluster, first):
    """In a later round, to its end."""
    cluster.wait_round(4, after=first)
    cluster.finish()


def all_end(cluster, url, code, text, *more, env=()):
    """The nodes of a job that is refused: by this text, once, and more."""
    two_nodes(cluster, url, env=env)
    for n in cluster.nodes:
        assert n.wait() == code
        assert n.text().count(text) == 1 and all(t in n.text() for t in more), n.text()
    cluster.nodes.clear()


@pytest.mark.slow
def test_a_quick_restart_with_its_data_goes_unnoticed(cluster):
    redis = cluster.redis("appendonly yes", "appendfsync always")
    first = runs(cluster, redis.url)
    redis.kill()
    redis.start()
    time.sleep(6)  # twice the silence that would stop the workers
    assert sorted(cluster.rounds()) == [first], "\n".join(n.text() for n in cluster.nodes)
    cluster.finish()


@pytest.mark.slow
def test_a_long_outage_stops_the_workers_and_the_job_forms_again(cluster):
    redis = cluster.redis("appendonly yes", "appendfsync always")
    first = runs(cluster, redis.url)
    redis.kill()
    said(cluster, f"{redis.url}")  # which server is out of reach
    said(cluster, "the workers here were ended")
    redis.start()
    goes_on(cluster, first)


def test_a_server_that_comes_back_empty_costs_a_round(cluster):
    redis = cluster.redis()
    first = runs(cluster, redis.url)
    redis.kill()
    redis.start()
    goes_on(cluster, first)


@pytest.mark.long
def test_flushall_in_mid_job_costs_a_round(cluster):
    redis = cluster.redis()
    first = runs(cluster, redis.url)
    redis.cli("flushall")
    goes_on(cluster, first)


def test_a_primary_that_may_lose_writes_is_refused(cluster):
    redis = cluster.redis()
    replica = cluster.redis(f"replicaof 127.0.0.1 {redis.port}")
    wait("the replica", lambda: "state=online" in redis.cli("info", "replication"))
    all_end(cluster, redis.url, 2, "may lose what it acknowledged (it has replicas)", "CONFIG SET min-replicas-to-write 1")
    runs_to_its_end(cluster, redis.url, "--rdzv_conf", "allow_unsafe=1")
    for r in redis, replica:
        r.cli("config", "set", "min-replicas-to-write", 1)
    runs_to_its_end(cluster, redis.url)


@pytest.mark.long
def test_a_promoted_redis_is_waited_out_once(cluster):
    """Its predecessor may still acknowledge what it knows nothing of; but not for ever."""
    old = cluster.redis()
    new = cluster.redis(f"replicaof 127.0.0.1 {old.port}")
    wait("the replica", lambda: "master_link_status:up" in new.cli("info", "replication"))
    for r in old, new:
        r.cli("config", "set", "min-replicas-to-write", 1)
        r.cli("config", "set", "min-replicas-max-lag", 1)
    new.cli("replicaof", "no", "one")
    old.cli("replicaof", "127.0.0.1", new.port)
    wait("the old primary as a replica", lambda: "state=online" in new.cli("info", "replication"))
    assert "lag=" in new.cli("info", "replication")

    def run(name, *conf):
        nodes = [cluster.node("--nnodes", 2, "--rdzv_endpoint", new.url, "--rdzv_id", name, *conf, program=["true"]) for _ in range(2)]
        assert [n.wait() for n in nodes] == [0, 0], "\n".join(n.text() for n in nodes)

    assert new.cli("get", "crun:server") == ""
    run("first")
    words = dict(line.split(":", 1) for line in (new.cli("info", "server") + "\n" + new.cli("info", "replication")).split() if ":" in line)
    assert new.cli("get", "crun:server") == f"{words['run_id']}-{words['master_replid']}"
    start = time.monotonic()
    run("second", "--rdzv_conf", "keep_alive_interval=20")  # a silence of a minute: whoever waits for it shows it
    assert time.monotonic() - start < 45


def test_a_password_at_the_start_is_asked_for_by_name(cluster):
    redis = cluster.redis("requirepass secret")
    all_end(cluster, redis.url, 2, "a password is needed: CRUN_REDIS_PASSWORD_FILE")
    all_end(cluster, redis.url, 2, "the user or the password is wrong (WRONGPASS", env={"CRUN_REDIS_PASSWORD": "wrong"})


def test_passwords_come_from_file_environment_and_url(cluster):
    redis = cluster.redis("requirepass secret", "user trainer on >s3cr@t ~crun:* +@all")
    file = cluster.tmp / "password"
    file.write_text("secret\n")
    for node, (url, env) in enumerate([(redis.url, {"CRUN_REDIS_PASSWORD_FILE": str(file)}),
                                       (f"redis://trainer:s3cr%40t@127.0.0.1:{redis.port}/0", {}),
                                       (redis.url, {"REDISCLI_AUTH": "secret"})]):
        cluster.node("--nnodes", 3, "--rdzv_endpoint", url, "--rdzv_id", "job", "--local-addr", "127.0.0.1", env=env)
    cluster.wait_round(3)
    cluster.finish()


@pytest.mark.slow
def test_a_password_set_in_mid_job_is_told_and_mended(cluster):
    redis = cluster.redis()
    first = runs(cluster, redis.url)
    redis.cli("config", "set", "requirepass", "secret")
    subprocess.run(["redis-cli", "-p", str(redis.port), "-a", "secret", "client", "kill", "type", "normal"], capture_output=True,
                   timeout=30)
    said(cluster, "a password is needed")
    subprocess.run(["redis-cli", "-p", str(redis.port), "-a", "secret", "config", "set", "requirepass", ""], capture_output=True,
                   timeout=30)
    cluster.finish()


def test_a_replica_is_refused_by_what_it_is(cluster):
    primary = cluster.redis()
    replica = cluster.redis(f"replicaof 127.0.0.1 {primary.port}")
    wait("the replica's link", lambda: "master_link_status:up" in replica.cli("info", "replication"))
    all_end(cluster, replica.url, 69, "it is a read-only replica: name the primary")


def test_loading_is_waited_for(cluster):
    redis = cluster.redis("enable-debug-command yes")
    assert redis.cli("debug", "populate", 3000) == "OK"
    assert redis.cli("save") == "OK"
    redis.kill()
    redis.start("key-load-delay 20000", "loading-process-events-interval-bytes 1024")  # a minute
    two_nodes(cluster, redis.url)
    said(cluster, "it is loading its data")
    assert redis.cli("config", "set", "key-load-delay", 0) == "OK"
    cluster.wait_round(4)
    cluster.finish()


def test_too_many_clients_is_told_and_waited_for(cluster):
    redis = cluster.redis("maxclients 2")
    with socket.create_connection(("127.0.0.1", redis.port), timeout=30) as admin:  # leaves room for one
        admin.sendall(b"PING\r\n")
        assert admin.recv(100) == b"+PONG\r\n"
        two_nodes(cluster, redis.url)
        wait("a message", lambda: any("as many clients as it may" in n.text() for n in cluster.nodes))
        admin.sendall(b"CONFIG SET maxclients 100\r\n")
        assert admin.recv(100) == b"+OK\r\n"
    cluster.wait_round(4)
    cluster.finish()


@pytest.mark.slow
def test_a_sentinel_failover_is_followed(cluster):
    primary = cluster.redis()
    replica = cluster.redis(f"replicaof 127.0.0.1 {primary.port}")
    wait("the replica's link", lambda: "master_link_status:up" in replica.cli("info", "replication"))
    sentinels = [
        cluster.redis(f"sentinel monitor prime 127.0.0.1 {primary.port} 2", "sentinel down-after-milliseconds prime 1000",
              "sentinel failover-timeout prime 5000", sentinel=True) for _ in range(3)
    ]
    wait("the sentinels' agreement", lambda: all("num-other-sentinels\n2" in s.cli("sentinel", "master", "prime") and
                                                 "num-slaves\n1" in s.cli("sentinel", "master", "prime") for s in sentinels))
    url = "redis+sentinel://" + ",".join(f"127.0.0.1:{s.port}" for s in sentinels) + "/prime"
    two_nodes(cluster, url, "--rdzv_conf", "allow_unsafe=1")  # no replica is left after the failover
    cluster.wait_round(4)
    primary.kill()
    wait("the failover", lambda: "role:master" in replica.cli("info", "replication"))
    time.sleep(10)  # a silence, a hold and a round, if need be
    cluster.finish()
    assert int(replica.cli("dbsize")) > 0


def cluster_ports(n):
    """A node's bus listens at its port + 10000."""
    found = set()
    while len(found) < n:
        port = free_port()
        if port < 22768:  # its bus, too, is below the ports that the kernel hands out
            found.add(port)
    return sorted(found)


def test_a_cluster_of_three_is_followed(cluster):
    nodes = [cluster.redis("cluster-enabled yes", port=port) for port in cluster_ports(3)]
    made = subprocess.run(["redis-cli", "--cluster", "create", *[f"127.0.0.1:{n.port}" for n in nodes], "--cluster-yes"],
                          capture_output=True, text=True, timeout=60)
    assert made.returncode == 0, made.stdout
    wait("the cluster", lambda: all("cluster_state:ok" in n.cli("cluster", "info") for n in nodes))
    for i, n in enumerate(nodes):  # one node each: at most one of them holds the slot
        cluster.node("--nnodes", 3, "--rdzv_endpoint", n.url, "--rdzv_id", "job", "--local-addr", "127.0.0.1", "--rdzv_conf",
                     "allow_unsafe=1")
    cluster.wait_round(3)
    cluster.finish()
    assert sorted(int(n.cli("dbsize")) > 0 for n in nodes) == [False, False, True]


def test_every_key_expires(cluster):
    redis = cluster.redis()
    two_nodes(cluster, redis.url)
    cluster.wait_round(4)
    keys = redis.cli("--raw", "keys", "*").split()
    assert keys and all(k.startswith("crun:{job}:") for k in keys)
    assert -1 not in [int(redis.cli("pttl", k)) for k in keys]  # -2: gone since it was listed
    cluster.finish()


@pytest.fixture(name="certificates")
def certificates_fixture(tmp_path):
    def openssl(*args):
        subprocess.run(["openssl", *args], cwd=tmp_path, check=True, capture_output=True, timeout=60)

    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "ca.key", "-out", "ca.crt",
            "-subj", "/CN=test authority", "-days", "2")
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "redis.key", "-out", "redis.csr", "-subj",
            "/CN=localhost")
    (tmp_path / "ext").write_text("subjectAltName=DNS:localhost\n")
    openssl("x509", "-req", "-in", "redis.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-out", "redis.crt", "-days", "2",
            "-extfile", "ext")
    return tmp_path


def test_tls_checks_authority_and_name(cluster, certificates):
    port = free_port()
    cluster.redis(f"tls-port {port}", f"tls-cert-file {certificates}/redis.crt", f"tls-key-file {certificates}/redis.key",
          f"tls-ca-cert-file {certificates}/ca.crt", "tls-auth-clients no")
    env = {"CRUN_REDIS_CA": str(certificates / "ca.crt")}
    runs_to_its_end(cluster, f"rediss://localhost:{port}", env=env)
    all_end(cluster, f"rediss://localhost:{port}", 69, "certificate is refused")  # by an authority nobody here knows
    all_end(cluster, f"rediss://127.0.0.1:{port}", 69, "certificate is refused", env=env)  # by another name than the certificate's


def test_tls_to_a_server_without_it_is_called_by_its_name(cluster):
    port = cluster.redis().port
    conf = "join_timeout=4,keep_alive_interval=0.2"
    node = cluster.node("--nnodes", 2, "--rdzv_endpoint", f"rediss://127.0.0.1:{port}", "--rdzv_id", "job", "--rdzv_conf", conf)
    assert node.wait() == 69
    assert "TLS handshake" in node.text() and "join_timeout" in node.text().splitlines()[-1], node.text()


@pytest.mark.long
@pytest.mark.parametrize("setting, broken, well, text", [("maxmemory", "1", "0", "its memory is full (maxmemory)"),
                                                         ("min-replicas-to-write", "1", "0", "only with replicas")])
def test_a_server_that_takes_no_writes_is_waited_for(cluster, setting, broken, well, text):
    redis = cluster.redis()
    redis.cli("config", "set", setting, broken)
    two_nodes(cluster, redis.url)
    said(cluster, text)
    redis.cli("config", "set", setting, well)
    first, _ = cluster.wait_round(4)
    redis.cli("config", "set", setting, broken)
    said(cluster, "the workers here were ended")
    redis.cli("config", "set", setting, well)
    goes_on(cluster, first)

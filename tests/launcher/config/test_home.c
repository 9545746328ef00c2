/* Where the rendezvous lives: the list of docs/guide/rendezvous.md, row by row. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "launcher/config/home.h"

/* A made-up machine. */
struct machine {
    const char *const *env; /* name, value, ..., NULL */
    const char *configured, *nodefile, *domain;
};

static const char *env(void *arg, const char *name)
{
    const struct machine *m = arg;
    for (const char *const *p = m->env; p && *p; p += 2)
        if (strcmp(*p, name) == 0)
            return p[1];
    return NULL;
}
static const char *first_line(void *arg, const char *path)
{
    return strcmp(path, "/nodes") == 0 ? ((const struct machine *)arg)->nodefile : NULL;
}
static const char *configured(void *arg)
{
    return ((const struct machine *)arg)->configured;
}
static const char *domain(void *arg)
{
    return ((const struct machine *)arg)->domain;
}

static int decide(const struct home_typed *t, const struct machine *m, struct home *h, struct err *e)
{
    const struct home_look look = {env, first_line, configured, domain, (void *)m};
    *e = (struct err){0};
    return home_decide(t, &look, h, e);
}

#define SEAT(rank) .master_port = -1, .node_rank = (rank), .is_host = -1
#define TYPED .master_port = -1, .node_rank = -1, .is_host = -1

static void what_was_typed_decides(void **state)
{
    static const struct {
        struct home_typed t;
        enum home_kind kind;
        enum home_hosting hosting;
        const char *endpoint, *run_id;
        int node_rank;
    } cases[] = {
        /* clang-format off */
        {{TYPED, .max_nodes = 1}, HOME_LOCAL, HOME_DIALS, "", "", -1},
        {{TYPED, .max_nodes = 1, .standalone = true}, HOME_LOCAL, HOME_DIALS, "", "", -1},
        {{TYPED, .max_nodes = 1, .standalone = true, .run_id = "r"}, HOME_LOCAL, HOME_DIALS, "", "r", -1},
        {{TYPED, .max_nodes = 1, .backend = "static"}, HOME_LOCAL, HOME_DIALS, "", "", -1},
        {{TYPED, .max_nodes = 1, .backend = "c10d"}, HOME_LOCAL, HOME_DIALS, "", "", -1},
        {{TYPED, .max_nodes = 1, .backend = "c10d", .endpoint = "localhost:0"}, HOME_LOCAL, HOME_DIALS, "", "", -1},
        {{TYPED, .max_nodes = 1, .backend = "", .endpoint = ""}, HOME_LOCAL, HOME_DIALS, "", "", -1},
        {{TYPED, .max_nodes = 2, .backend = "c10d", .endpoint = "n1:29500", .run_id = "j"}, HOME_TCP, HOME_HOSTS_IF_OWN, "n1:29500", "j", -1},
        {{TYPED, .max_nodes = 2, .backend = "rendezvousd", .endpoint = "n1", .run_id = "j"}, HOME_TCP, HOME_DIALS, "n1:29400", "j", -1},
        {{TYPED, .max_nodes = 2, .backend = "tcp", .endpoint = "10.0.0.5:1", .run_id = "j"}, HOME_TCP, HOME_HOSTS_IF_OWN, "10.0.0.5:1", "j", -1},
        {{TYPED, .max_nodes = 2, .endpoint = "n1:29500"}, HOME_TCP, HOME_HOSTS_IF_OWN, "n1:29500", "none", -1},
        {{TYPED, .max_nodes = 1, .endpoint = "n1:29500"}, HOME_TCP, HOME_HOSTS_IF_OWN, "n1:29500", "none", -1},
        {{TYPED, .max_nodes = 2, .endpoint = "[::1]"}, HOME_TCP, HOME_HOSTS_IF_OWN, "[::1]:29400", "none", -1},
        {{TYPED, .max_nodes = 2, .endpoint = "[fe80::1%eth0]:5"}, HOME_TCP, HOME_HOSTS_IF_OWN, "[fe80::1%eth0]:5", "none", -1},
        {{TYPED, .max_nodes = 2, .endpoint = "2001:db8::7"}, HOME_TCP, HOME_HOSTS_IF_OWN, "[2001:db8::7]:29400", "none", -1},
        {{.master_port = -1, .node_rank = 3, .is_host = 1, .max_nodes = 4, .endpoint = "n1"}, HOME_TCP, HOME_HOSTS, "n1:29400", "none", 3},
        {{.master_port = -1, .node_rank = -1, .is_host = 0, .max_nodes = 4, .endpoint = "n1"}, HOME_TCP, HOME_DIALS, "n1:29400", "none", -1},
        {{.master_port = -1, .node_rank = 2, .is_host = -1, .min_nodes = 2, .max_nodes = 3, .endpoint = "n1,[::1]:5,n3:7"}, HOME_LISTED, HOME_HOSTS_IF_OWN, "n1:29400,[::1]:5,n3:7", "none", 2},
        {{.master_port = -1, .node_rank = 0, .is_host = 0, .min_nodes = 2, .max_nodes = 2, .endpoint = "a,b", .backend = "c10d"}, HOME_LISTED, HOME_DIALS, "a:29400,b:29400", "none", 0},
        {{.master_port = -1, .node_rank = 0, .is_host = 1, .min_nodes = 2, .max_nodes = 2, .endpoint = "a:1,a:2", .run_id = "j"}, HOME_LISTED, HOME_HOSTS, "a:1,a:2", "j", 0},
        {{.master_port = 29501, .node_rank = 0, .is_host = -1, .max_nodes = 2, .master_addr = "n1"}, HOME_STATIC, HOME_HOSTS, "n1:29501", "none", 0},
        {{.master_port = 29501, .node_rank = 1, .is_host = -1, .max_nodes = 2, .master_addr = "n1"}, HOME_STATIC, HOME_DIALS, "n1:29501", "none", 1},
        {{.master_port = -1, .node_rank = 1, .is_host = -1, .max_nodes = 2, .master_addr = "n1"}, HOME_STATIC, HOME_DIALS, "n1:29500", "none", 1},
        {{.master_port = 29501, .node_rank = -1, .is_host = -1, .max_nodes = 1}, HOME_STATIC, HOME_HOSTS, "127.0.0.1:29501", "none", 0},
        {{.master_port = 7, .node_rank = 1, .is_host = -1, .max_nodes = 2, .master_addr = "::1", .backend = "static"}, HOME_STATIC, HOME_DIALS, "[::1]:7", "none", 1},
        {{.master_port = -1, .node_rank = 0, .is_host = -1, .max_nodes = 2, .endpoint = "n1:9", .backend = "static"}, HOME_STATIC, HOME_HOSTS, "n1:9", "none", 0},
        {{TYPED, .max_nodes = 2, .backend = "c10d", .master_addr = "n1"}, HOME_TCP, HOME_HOSTS_IF_OWN, "n1:29400", "none", -1},
        {{.master_port = 29501, .node_rank = 1, .is_host = -1, .max_nodes = 2, .backend = "c10d", .master_addr = "n1"}, HOME_TCP, HOME_HOSTS_IF_OWN, "n1:29501", "none", 1},
        {{.master_port = 29501, .node_rank = -1, .is_host = -1, .max_nodes = 2, .endpoint = "n1:29400"}, HOME_TCP, HOME_HOSTS_IF_OWN, "n1:29400", "none", -1},
        {{TYPED, .max_nodes = 2, .endpoint = "redis://h:6379/1", .run_id = "j"}, HOME_REDIS, HOME_DIALS, "redis://h:6379/1", "j", -1},
        {{TYPED, .max_nodes = 2, .endpoint = "rediss://h", .run_id = "j"}, HOME_REDIS, HOME_DIALS, "rediss://h", "j", -1},
        {{TYPED, .max_nodes = 2, .endpoint = "redis+sentinel://a,b/m", .run_id = "j", .backend = "redis"}, HOME_REDIS, HOME_DIALS, "redis+sentinel://a,b/m", "j", -1},
        {{TYPED, .max_nodes = 2, .endpoint = "rediss+sentinel://a,b/m", .run_id = "j"}, HOME_REDIS, HOME_DIALS, "rediss+sentinel://a,b/m", "j", -1},
        {{TYPED, .max_nodes = 2, .endpoint = "h:6379", .run_id = "j", .backend = "redis"}, HOME_REDIS, HOME_DIALS, "redis://h:6379", "j", -1},
        {{TYPED, .max_nodes = 2, .endpoint = "etcd://a:2379,b/pre", .run_id = "j"}, HOME_ETCD, HOME_DIALS, "etcd://a:2379,b/pre", "j", -1},
        {{TYPED, .max_nodes = 2, .endpoint = "etcds://a", .run_id = "j", .backend = "etcd"}, HOME_ETCD, HOME_DIALS, "etcds://a", "j", -1},
        {{TYPED, .max_nodes = 2, .endpoint = "a:2379,b:2379", .run_id = "j", .backend = "etcd-v2"}, HOME_ETCD, HOME_DIALS, "etcd://a:2379,b:2379", "j", -1},
        {{TYPED, .max_nodes = 2, .endpoint = "k8s://space/train"}, HOME_K8S, HOME_DIALS, "k8s://space/train", "train", -1},
        {{TYPED, .max_nodes = 2, .endpoint = "k8s://train", .run_id = "j"}, HOME_K8S, HOME_DIALS, "k8s://train", "j", -1},
        {{TYPED, .max_nodes = 2, .endpoint = "file:///shared", .run_id = "j"}, HOME_FILE, HOME_DIALS, "file:///shared", "j", -1},
        {{TYPED, .max_nodes = 2, .endpoint = "/shared", .run_id = "j", .backend = "file"}, HOME_FILE, HOME_DIALS, "file:///shared", "j", -1},
        {{TYPED, .max_nodes = 2, .endpoint = "/shared", .run_id = "j", .backend = "c10d", .store_type_file = true}, HOME_FILE, HOME_DIALS, "file:///shared", "j", -1},
        /* clang-format on */
    };
    const struct machine m = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct home h;
        struct err e;
        if (decide(&cases[i].t, &m, &h, &e) < 0)
            fail_msg("case %zu: %s", i, e.text);
        if (h.kind != cases[i].kind || h.hosting != cases[i].hosting || h.node_rank != cases[i].node_rank ||
            strcmp(h.endpoint, cases[i].endpoint) != 0 || strcmp(h.run_id, cases[i].run_id) != 0)
            fail_msg("case %zu: %s hosting=%d '%s' id '%s' rank %d", i, home_kind_name(h.kind), (int)h.hosting,
                     h.endpoint, h.run_id, h.node_rank);
        assert_null(h.unused[0]);
    }
}

static void the_port_of_the_store_is_the_one_that_was_typed(void **state)
{
    static const struct {
        struct home_typed t;
        int store_port;
        const char *unused;
    } cases[] = {
        {{.master_port = 7, .node_rank = -1, .is_host = -1, .max_nodes = 2, .endpoint = "n1"}, 7, NULL},
        {{.master_port = 7, .node_rank = -1, .is_host = -1, .max_nodes = 2, .endpoint = "redis://h", .run_id = "j"},
         7,
         NULL},
        {{.master_port = -1, .node_rank = -1, .is_host = -1, .max_nodes = 2, .endpoint = "n1"}, 0, NULL},
        {{.master_port = 7, .node_rank = -1, .is_host = -1, .max_nodes = 2, .endpoint = "n1:7"},
         0,
         "--master-port, which is the port of the rendezvous itself,"},
        {{.master_port = 7, .node_rank = 0, .is_host = -1, .max_nodes = 2, .master_addr = "n1"},
         0,
         NULL}, /* the rendezvous' own */
        {{.master_port = 7, .node_rank = 0, .is_host = -1, .max_nodes = 2, .backend = "c10d", .master_addr = "n1"},
         0,
         NULL},
        {{.master_port = 7, .node_rank = 0, .is_host = -1, .max_nodes = 2, .master_addr = "n2", .endpoint = "n1"},
         7,
         "--master-addr"},
        {{.master_port = 7, .node_rank = 0, .is_host = -1, .max_nodes = 1, .standalone = true}, 0, "--master-port"},
    };
    const struct machine m = {0};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct home h;
        struct err e;
        if (decide(&cases[i].t, &m, &h, &e) < 0)
            fail_msg("case %zu: %s", i, e.text);
        if (h.store_port != cases[i].store_port || (h.unused[0] != NULL) != (cases[i].unused != NULL) ||
            (h.unused[0] && strcmp(h.unused[0], cases[i].unused) != 0))
            fail_msg("case %zu: port %d, unused %s", i, h.store_port, h.unused[0] ? h.unused[0] : "nothing");
    }
}

static void a_list_of_nodes_that_cannot_be_read_is_named(void **state)
{
    static const char *const env[] = {"SLURM_JOB_ID", "7", "SLURM_NODEID", "0", "SLURM_JOB_NODELIST",
                                      "n[1-2].site",  NULL};
    const struct machine m = {.env = env};
    struct home h;
    struct err e;
    (void)state;
    assert_int_equal(decide(&(struct home_typed){TYPED, .max_nodes = 2}, &m, &h, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "the first node of Slurm's list 'n[1-2].site' cannot be told"));
}

static void what_cannot_be_is_refused_by_a_sentence(void **state)
{
    static const struct {
        struct home_typed t;
        const char *part;
    } cases[] = {
        /* clang-format off */
        {{TYPED, .max_nodes = 2}, "needs a place to meet: give --rdzv-endpoint HOST:PORT"},
        {{TYPED, .max_nodes = 2}, "/etc/crun.conf"},
        {{TYPED, .max_nodes = 2, .backend = "c10d"}, "needs a place to meet"},
        {{TYPED, .max_nodes = 2, .standalone = true}, "--standalone runs one node, --nnodes says up to 2"},
        {{TYPED, .max_nodes = 2, .backend = "etcd"}, "--rdzv-backend etcd needs --rdzv-endpoint"},
        {{TYPED, .max_nodes = 2, .backend = "etcd-v2"}, "--rdzv-backend etcd-v2 needs --rdzv-endpoint"},
        {{TYPED, .max_nodes = 2, .endpoint = "etcd://h"}, "expected --rdzv-id"},
        {{TYPED, .max_nodes = 2, .endpoint = "k8s://none"}, "'none' is no name of one job alone"},
        {{TYPED, .max_nodes = 2, .backend = "c10d", .endpoint = "k8s://a"}, "does not go with --rdzv-endpoint k8s://"},
        {{TYPED, .max_nodes = 2, .backend = "redis", .endpoint = "etcd://h"}, "does not go with --rdzv-endpoint etcd://"},
        {{TYPED, .max_nodes = 2, .backend = "d"}, "--rdzv-backend 'd': expected c10d, rendezvousd, tcp, static, redis, etcd or file"},
        {{TYPED, .max_nodes = 2, .backend = "c10d tcp", .endpoint = "h"}, "--rdzv-backend 'c10d tcp': expected"},
        {{TYPED, .max_nodes = 2, .backend = "redis"}, "--rdzv-backend redis needs --rdzv-endpoint"},
        {{TYPED, .max_nodes = 2, .backend = "c10d", .endpoint = "redis://h", .run_id = "j"}, "does not go with --rdzv-endpoint redis://"},
        {{TYPED, .max_nodes = 2, .backend = "tcp", .endpoint = "file:///d", .run_id = "j"}, "does not go with --rdzv-endpoint file://"},
        {{.master_port = -1, .node_rank = -1, .is_host = 1, .max_nodes = 2, .backend = "rendezvousd", .endpoint = "h"},
         "--rdzv-conf is_host=1: 'h' is the address of a rendezvousd (--rdzv-backend rendezvousd), where no crun hosts"},
        {{TYPED, .max_nodes = 2, .endpoint = "http://h"}, "'http://h': expected HOST[:PORT], redis://"},
        {{TYPED, .max_nodes = 2, .endpoint = "redis://h"}, "expected --rdzv-id"},
        {{TYPED, .max_nodes = 2, .endpoint = "file:///d"}, "expected --rdzv-id"},
        {{TYPED, .max_nodes = 2, .endpoint = "redis://h", .run_id = "none"}, "--rdzv-id 'none' is no name of one job alone"},
        {{TYPED, .max_nodes = 2, .endpoint = "file:///d", .run_id = "default"}, "--rdzv-id 'default' is no name of one job alone"},
        {{TYPED, .max_nodes = 2, .endpoint = "d", .backend = "file", .run_id = "j"}, "an absolute path"},
        {{TYPED, .max_nodes = 2, .endpoint = "file://rel", .run_id = "j"}, "--rdzv-endpoint: 'file://rel': expected file:///DIR, an absolute path"},
        {{TYPED, .max_nodes = 2, .endpoint = "h:0"}, "a port from 1 to 65535 that the other nodes can dial"},
        {{TYPED, .max_nodes = 2, .endpoint = "h:65536"}, "port: 65536 is out of range"},
        {{TYPED, .max_nodes = 2, .endpoint = "h:x"}, "'x' is not a whole number"},
        {{TYPED, .max_nodes = 2, .endpoint = ":29400"}, "expected HOST, HOST:PORT or [IPV6]:PORT"},
        {{TYPED, .max_nodes = 2, .endpoint = "[::1"}, "a closing bracket"},
        {{TYPED, .max_nodes = 2, .endpoint = "localhost:29998:3"}, "'localhost:29998:3' is no IPv6 address"},
        {{TYPED, .max_nodes = 2, .endpoint = "[a:b]:3"}, "'a:b' is no IPv6 address"},
        {{TYPED, .max_nodes = 2, .endpoint = "1:2:3"}, "'1:2:3' is no IPv6 address"},
        {{TYPED, .max_nodes = 2, .endpoint = "h", .backend = "rendezvousd"}, "no --rdzv-id is given: a rendezvous that jobs share"},
        {{TYPED, .max_nodes = 2, .endpoint = "[::1]x"}, "expected HOST, HOST:PORT or [IPV6]:PORT"},
        {{TYPED, .max_nodes = 2, .endpoint = "a b"}, "expected HOST, HOST:PORT or [IPV6]:PORT"},
        {{.master_port = 0, .node_rank = 0, .is_host = -1, .max_nodes = 2, .master_addr = "h"}, "a static rendezvous needs a port"},
        {{.master_port = -1, .node_rank = 2, .is_host = -1, .max_nodes = 2, .master_addr = "h"}, "--node-rank 2: expected 0 to 1, as --nnodes allows 2 nodes"},
        {{.master_port = -1, .node_rank = 1, .is_host = -1, .max_nodes = 1, .master_addr = "h"}, "--node-rank 1: expected 0 to 0"},
        {{SEAT(0), .min_nodes = 2, .max_nodes = 2, .endpoint = "a,b", .backend = "static"}, "expected HOST"},
        {{SEAT(0), .min_nodes = 2, .max_nodes = 2, .endpoint = "a,b", .backend = "rendezvousd"}, "no --rdzv-id is given: a rendezvous that jobs share"},
        {{SEAT(0), .min_nodes = 2, .max_nodes = 2, .endpoint = "a,b:29400,A"}, "'A' is in the list twice"},
        {{SEAT(0), .min_nodes = 2, .max_nodes = 2, .endpoint = "a,"}, "'': expected HOST, HOST:PORT"},
        {{SEAT(0), .min_nodes = 2, .max_nodes = 2, .endpoint = "a,b:0"}, "a port from 1 to 65535"},
        {{SEAT(0), .min_nodes = 2, .max_nodes = 2, .endpoint = "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q"}, "expected at most 16 hosts"},
        /* clang-format on */
    };
    const struct machine m = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct home h;
        struct err e;
        int rc = decide(&cases[i].t, &m, &h, &e);
        if (rc != ERR_USAGE || !strstr(e.text, cases[i].part))
            fail_msg("case %zu: %d '%s'", i, rc, e.text);
    }
}

/* They may be daemons, which is known when they are asked. */
static void a_list_that_nodes_cannot_host_may_be_one_of_daemons(void **state)
{
    static const struct {
        struct home_typed t;
        const char *unfit;
    } cases[] = {
        /* clang-format off */
        {{TYPED, .min_nodes = 2, .max_nodes = 3, .endpoint = "a,b"}, "each node has a seat of its own: give --node-rank, 0 to 2"},
        {{SEAT(0), .min_nodes = 2, .max_nodes = 4, .endpoint = "a,b"}, "two hosts of a list could gather 2 nodes each and both run the job; expected MIN to be more than half of MAX, as 3:4"},
        {{SEAT(3), .min_nodes = 2, .max_nodes = 3, .endpoint = "a,b"}, "--node-rank 3: expected 0 to 2"},
        {{SEAT(0), .min_nodes = 1, .max_nodes = 1, .endpoint = "a,b"}, "a job of one node meets nobody"},
        {{SEAT(0), .min_nodes = 2, .max_nodes = 2, .endpoint = "a,b", .spare = true}, "--spare does not go with a list of hosts"},
        {{SEAT(0), .min_nodes = 2, .max_nodes = 2, .endpoint = "a,b"}, ""},
        /* clang-format on */
    };
    const struct machine m = {0}, daemons = {.configured = "a,b:1"};
    struct home h;
    struct err e;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(decide(&cases[i].t, &m, &h, &e), 0);
        if (!strstr(h.unfit, cases[i].unfit) || !h.unfit[0] != !cases[i].unfit[0] || h.daemons || h.kind != HOME_LISTED)
            fail_msg("case %zu: '%s'", i, h.unfit);
    }
    assert_int_equal(decide(&(struct home_typed){TYPED, .max_nodes = 4, .run_id = "j"}, &daemons, &h, &e), 0);
    assert_true(h.kind == HOME_LISTED && h.daemons && !h.unfit[0] && h.hosting == HOME_DIALS && !h.numbered);
    assert_string_equal(h.endpoint, "a:29400,b:1");
    assert_int_equal(
        decide(&(struct home_typed){TYPED, .max_nodes = 4, .run_id = "j", .endpoint = "a,b", .backend = "rendezvousd"},
               &m, &h, &e),
        0);
    assert_true(h.daemons);
}

/* srun -N NODES -n TASKS, in task PROCID, the LOCALID-th of node NODEID; more: further variables. */
#define SRUN(nodes, tasks, procid, localid, nodeid, ...)                                                               \
    {                                                                                                                  \
        .env = (const char *const[])                                                                                   \
        {                                                                                                              \
            "SLURM_JOB_ID", "77", "SLURM_STEP_NODELIST", "a,b", "SLURM_STEP_NUM_NODES", nodes, "SLURM_STEP_NUM_TASKS", \
                tasks, "SLURM_PROCID", procid, "SLURM_LOCALID", localid, "SLURM_NODEID", nodeid, __VA_ARGS__ NULL      \
        }                                                                                                              \
    }

#define ONE_A_NODE "expected srun --ntasks-per-node=1"
static const struct {
    struct machine m;
    struct home_typed t;
    const char *refused; /* NULL: taken */
    int node_rank;
} task_cases[] = {
    {SRUN("2", "2", "1", "0", "1", ), {TYPED, .max_nodes = 2}, NULL, 1},
    {SRUN("2", "2", "1", "0", "1", ),
     {TYPED, .min_nodes = 3, .max_nodes = 3},
     "asks for 3 nodes, but Slurm has started crun on 2"},
    {SRUN("2", "2", "1", "0", "1", ), {TYPED, .min_nodes = 2, .max_nodes = 3}, NULL, 1},
    {SRUN("2", "2", "1", "0", "1", ), {TYPED, .min_nodes = 3, .max_nodes = 3, .endpoint = "rdzv:29400"}, NULL, -1},
    {SRUN("4", "4", "3", "0", "3", ),
     {TYPED, .min_nodes = 2, .max_nodes = 2},
     "this is node 3 of Slurm, counted from 0, but --nnodes allows 2"},
    {SRUN("4", "4", "3", "0", "3", ), {TYPED, .min_nodes = 2, .max_nodes = 2, .spare = true}, NULL, 3},
    {SRUN("4", "4", "3", "0", "3", ), {TYPED, .min_nodes = 1, .max_nodes = 2}, NULL, 3},
    {SRUN("2", "4", "0", "0", "0", ), {TYPED, .max_nodes = 2}, ONE_A_NODE},
    {SRUN("2", "4", "3", "1", "1", ), {TYPED, .max_nodes = 2}, "or --nnodes 4 if each task is meant to be a node"},
    {SRUN("2", "4", "2", "0", "1", ), {TYPED, .max_nodes = 4}, NULL, 2},
    {SRUN("1", "3", "0", "0", "0", ), {TYPED, .max_nodes = 1}, ONE_A_NODE},
    {SRUN("1", "3", "1", "1", "0", ), {TYPED, .max_nodes = 1, .standalone = true}, NULL, -1},
    {SRUN("1", "3", "1", "1", "0", "TORCHELASTIC_RUN_ID", "j", ), {TYPED, .max_nodes = 1}, NULL, -1},
    {SRUN("2", "4", "3", "1", "1", ), {TYPED, .max_nodes = 2, .endpoint = "rdzv:29400"}, ONE_A_NODE},
    {{.env = (const char *const[]){"SLURM_JOB_ID", "7", "SLURM_LOCALID", "1", NULL}},
     {TYPED, .max_nodes = 1},
     "srun started several tasks on a node"},
    {{.env = (const char *const[]){"SLURM_JOB_ID", "7", "SLURM_STEP_NUM_NODES", "2", "SLURM_NODEID", "1",
                                   "SLURM_STEP_TASKS_PER_NODE", "1,2", NULL}},
     {TYPED, .max_nodes = 2, .endpoint = "rdzv:29400"},
     "srun started several tasks on a node"},
    {{.env = (const char *const[]){"SLURM_JOB_ID", "7", "SLURM_STEP_NUM_NODES", "2", "SLURM_NODEID", "0",
                                   "SLURM_STEP_TASKS_PER_NODE", "1,2", NULL}}, /* on the other one, which ends */
     {TYPED, .max_nodes = 2, .endpoint = "rdzv:29400"},
     "srun started several tasks"},
    {{.env = (const char *const[]){"SLURM_JOB_ID", "7", "SLURM_STEP_NUM_NODES", "2", "SLURM_NODEID", "0",
                                   "SLURM_STEP_TASKS_PER_NODE", "1(x2)", "SLURM_PROCID", "0", NULL}},
     {TYPED, .max_nodes = 2, .endpoint = "rdzv:29400"},
     NULL,
     -1},
    {{.env = (const char *const[]){"SLURM_JOB_ID", "7", "SLURM_STEP_NUM_NODES", "2", "SLURM_NODEID", "1",
                                   "SLURM_PROCID", "3", NULL}},
     {TYPED, .max_nodes = 2, .endpoint = "rdzv:29400"},
     "srun started several tasks on a node"},
    {{.env = (const char *const[]){"OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "4",
                                   "OMPI_COMM_WORLD_LOCAL_SIZE", "2", NULL}},
     {TYPED, .max_nodes = 1},
     "expected mpirun --map-by ppr:1:node"},
    {{.env = (const char *const[]){"OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "2",
                                   "OMPI_COMM_WORLD_LOCAL_SIZE", "1", NULL}},
     {TYPED, .max_nodes = 1},
     NULL,
     -1},
};

/* Several cruns of a node would each start all its workers, on the same devices. */
static void tasks_that_share_a_node_are_refused_or_are_nodes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof task_cases / sizeof *task_cases; i++) {
        struct home h;
        struct err e;
        const int rc = decide(&task_cases[i].t, &task_cases[i].m, &h, &e);
        const bool right = task_cases[i].refused ? rc == ERR_USAGE && strstr(e.text, task_cases[i].refused)
                                                 : rc == 0 && h.node_rank == task_cases[i].node_rank;
        if (!right)
            fail_msg("case %zu: %d '%s'", i, rc, e.text);
    }
}

static void a_crun_in_a_worker_does_not_join_the_job_around_it(void **state)
{
    static const char *const around[] = {"TORCHELASTIC_RUN_ID", "j", NULL}, *const nameless[] = {"TORCHELASTIC_RUN_ID",
                                                                                                 HOME_RUN_ID, NULL};
    static const struct {
        const char *const *env;
        struct home_typed t;
        bool refused;
    } cases[] = {
        {around, {TYPED, .max_nodes = 1, .run_id = "j"}, false}, /* alone */
        {around, {TYPED, .max_nodes = 1, .run_id = "j", .endpoint = "x:1"}, true},
        {around, {TYPED, .max_nodes = 2, .run_id = "j", .endpoint = "redis://x"}, true},
        {around, {TYPED, .max_nodes = 2, .run_id = "k", .endpoint = "x:1"}, false},
        {nameless, {TYPED, .max_nodes = 2, .endpoint = "x:1"}, true},
        {nameless, {TYPED, .max_nodes = 2, .endpoint = "x:1", .endpoint_is_near = true}, false},
        {nameless, {TYPED, .max_nodes = 2, .run_id = HOME_RUN_ID, .endpoint = "x:1", .endpoint_is_near = true}, true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct machine m = {.env = cases[i].env};
        struct home h;
        struct err e;
        const int rc = decide(&cases[i].t, &m, &h, &e);
        if ((rc == ERR_USAGE && strstr(e.text, "which it would join")) != cases[i].refused)
            fail_msg("case %zu: %d '%s'", i, rc, e.text);
    }
}

static const struct {
    struct machine m;
    const char *from, *endpoint, *run_id; /* endpoint NULL: refused */
    enum home_hosting hosting;
    int node_rank;
} schedulers[] = {
    {{.env = (const char *const[]){"SLURM_JOB_ID", "77", "SLURM_JOB_NODELIST", "node[07-12,20],gpu3", "SLURM_NODEID",
                                   "0", "SLURM_STEP_ID", "0", NULL}},
     "Slurm",
     "node07:",
     "77.0",
     HOME_HOSTS,
     0},
    {{.env = (const char *const[]){"SLURM_JOB_ID", "77", "SLURM_JOB_NODELIST", "x1", "SLURM_STEP_NODELIST", "a-1,b",
                                   "SLURM_NODEID", "1", NULL}},
     "Slurm",
     "a-1:",
     "77",
     HOME_DIALS,
     1},
    {{.env = (const char *const[]){"PBS_JOBID", "5.srv", "PBS_NODEFILE", "/nodes", NULL}, .nodefile = "n3"},
     "PBS",
     "n3:",
     "5.srv",
     HOME_HOSTS_IF_OWN,
     -1},
    {{.env = (const char *const[]){"PBS_JOBID", "5.srv", "PBS_NODEFILE", "/nodes", "PBS_NODENUM", "2", NULL},
      .nodefile = "n3"},
     "PBS",
     "n3:",
     "5.srv",
     HOME_DIALS,
     2},
    {{.env =
          (const char *const[]){"OMPI_COMM_WORLD_RANK", "1", "OMPI_MCA_ess_base_jobid", "265", "OMPI_MCA_orte_hnp_uri",
                                "264.0;tcp://10.0.0.1,10.1.0.1:49511;tcp6://[fd00::2]:5", NULL}},
     "Open MPI",
     "10.0.0.1:",
     "265",
     HOME_HOSTS_IF_OWN,
     -1},
    {{.env = (const char *const[]){"OMPI_COMM_WORLD_RANK", "1", "PMIX_NAMESPACE", "prterun-login-1-4711@1", NULL}},
     "Open MPI",
     "login-1:",
     "prterun-login-1-4711@1",
     HOME_HOSTS_IF_OWN,
     -1},
    {{.env = (const char *const[]){"OMPI_COMM_WORLD_RANK", "1", "PMIX_NAMESPACE", "slurm.pmix.7.0", NULL}},
     "",
     NULL,
     NULL,
     HOME_DIALS,
     -1},
    {{.env = (const char *const[]){"JOB_COMPLETION_INDEX", "2", "HOSTNAME", "train-a-2", "KUBERNETES_SERVICE_HOST",
                                   "10.96.0.1", NULL},
      .domain = "train.ns.svc.cluster.local"},
     "Kubernetes",
     "train-a-0.train.ns.svc.cluster.local:",
     "train-a",
     HOME_DIALS,
     2},
    {{.env =
          (const char *const[]){"JOB_COMPLETION_INDEX", "0", "HOSTNAME", "t-0", "KUBERNETES_SERVICE_HOST", "1", NULL}},
     "Kubernetes",
     "t-0:",
     "t",
     HOME_HOSTS,
     0},
    /* The scheduler says which job, the file where. */
    {{.env = (const char *const[]){"SLURM_JOB_ID", "77", NULL}, .configured = "rdzv.cluster:29400"},
     "crun.conf",
     "rdzv.cluster:29400",
     "77",
     HOME_DIALS,
     -1},
    {{.env = NULL, .configured = "rdzv.cluster"}, "", NULL, NULL, HOME_DIALS, -1},
    {{.env = (const char *const[]){"JOB_COMPLETION_INDEX", "2", "HOSTNAME", "pod-3", "KUBERNETES_SERVICE_HOST", "1",
                                   NULL}},
     "",
     NULL,
     NULL,
     HOME_DIALS,
     -1},
    {{.env = (const char *const[]){"SLURM_JOB_ID", "77", "SLURM_JOB_NODELIST", "node[,", NULL}},
     "",
     NULL,
     NULL,
     HOME_DIALS,
     -1},
};

static void a_configured_address_is_never_hosted(void **state)
{
    const struct machine m = {.configured = "rdzv.cluster"};
    struct home_typed t = {TYPED, .max_nodes = 2, .run_id = "j"};
    struct home h;
    struct err e;
    assert_int_equal(decide(&t, &m, &h, &e), 0);
    assert_int_equal(h.hosting, HOME_DIALS);
    t.is_host = 0;
    assert_int_equal(decide(&t, &m, &h, &e), 0);
    assert_int_equal(h.hosting, HOME_DIALS);
    t.is_host = 1;
    assert_int_equal(decide(&t, &m, &h, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "is_host=1: 'rdzv.cluster' is the address of a rendezvousd (crun.conf)"));
}

static void schedulers_and_the_configuration_file_are_asked(void **state)
{
    for (size_t i = 0; i < sizeof schedulers / sizeof *schedulers; i++) {
        const struct home_typed t = {TYPED, .max_nodes = 2};
        struct home h;
        struct err e;
        int rc = decide(&t, &schedulers[i].m, &h, &e);
        if (!schedulers[i].endpoint) {
            assert_int_equal(rc, ERR_USAGE);
            continue;
        }
        if (rc < 0)
            fail_msg("case %zu: %s", i, e.text);
        assert_string_equal(h.from, schedulers[i].from);
        if (strncmp(h.endpoint, schedulers[i].endpoint, strlen(schedulers[i].endpoint)) != 0)
            fail_msg("case %zu: %s", i, h.endpoint);
        assert_string_equal(h.run_id, schedulers[i].run_id);
        assert_int_equal(h.hosting, schedulers[i].hosting);
        assert_int_equal(h.node_rank, schedulers[i].node_rank);
        assert_in_range(h.port, 29400, 32399);
    }
}

/* What is typed is not overruled. */
static void a_scheduler_does_not_matter_where_something_is_typed(void **state)
{
    const struct machine m = {
        .env = (const char *const[]){"SLURM_JOB_ID", "77", "SLURM_JOB_NODELIST", "n1", "SLURM_NODEID", "0", NULL},
        .configured = "elsewhere"};
    struct home h;
    struct err e;
    const struct home_typed one = {TYPED, .max_nodes = 1}, typed = {TYPED, .max_nodes = 2, .endpoint = "h:1"},
                            redis = {TYPED, .max_nodes = 2, .endpoint = "redis://h"};
    assert_int_equal(decide(&one, &m, &h, &e), 0);
    assert_int_equal(h.kind, HOME_LOCAL);
    assert_string_equal(h.run_id, "");
    assert_int_equal(decide(&typed, &m, &h, &e), 0);
    assert_string_equal(h.endpoint, "h:1");
    assert_int_equal(decide(&redis, &m, &h, &e), 0); /* the job's id is enough of a name */
    assert_string_equal(h.run_id, "77");
}

static void all_options_without_a_meaning_are_named(void **state)
{
    const struct machine m = {0};
    struct home h;
    struct err e;
    const struct home_typed alone = {TYPED, .standalone = true, .max_nodes = 1, .endpoint = "h", .backend = "c10d"};
    assert_int_equal(decide(&alone, &m, &h, &e), 0);
    assert_string_equal(h.unused[0], "--rdzv-endpoint");
    assert_string_equal(h.unused[1], "--rdzv-backend");
    assert_null(h.unused[2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tasks_that_share_a_node_are_refused_or_are_nodes),
        cmocka_unit_test(a_crun_in_a_worker_does_not_join_the_job_around_it),
        cmocka_unit_test(what_was_typed_decides),
        cmocka_unit_test(what_cannot_be_is_refused_by_a_sentence),
        cmocka_unit_test(the_port_of_the_store_is_the_one_that_was_typed),
        cmocka_unit_test(a_list_of_nodes_that_cannot_be_read_is_named),
        cmocka_unit_test(a_list_that_nodes_cannot_host_may_be_one_of_daemons),
        cmocka_unit_test(schedulers_and_the_configuration_file_are_asked),
        cmocka_unit_test(a_configured_address_is_never_hosted),
        cmocka_unit_test(a_scheduler_does_not_matter_where_something_is_typed),
        cmocka_unit_test(all_options_without_a_meaning_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

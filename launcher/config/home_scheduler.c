/* Reads the job's first host, id and node numbers from the variables of Slurm, PBS, Kubernetes and Open MPI. See
 * home_scheduler.h. */
#include "launcher/config/home_scheduler.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args/args.h"
#include "common/base/err.h"
#include "common/job/slurm.h"

static const char *env(const struct home_look *l, const char *name)
{
    const char *v = l->env(l->arg, name);
    return v && *v ? v : NULL;
}

static int number(const char *text, int missing)
{
    int64_t v;
    return text && parse_i64(text, "", 0, INT32_MAX, &v, NULL) == 0 ? (int)v : missing;
}

/* Tasks that one launch started: each has the same program, here crun. */
struct tasks {
    const char *launcher, *one_a_node; /* and its option for that; launcher NULL: there is none */
    int total;                         /* -1: not known */
    bool several;                      /* on some node */
};

static void look_tasks(const struct home_look *l, struct tasks *t)
{
    *t = (struct tasks){.total = -1};
    if (env(l, "SLURM_JOB_ID")) {
        const int nodes = number(env(l, "SLURM_STEP_NUM_NODES"), -1);
        t->launcher = "srun";
        t->one_a_node = "--ntasks-per-node=1";
        t->total = number(env(l, "SLURM_STEP_NUM_TASKS"), -1);
        t->several = number(env(l, "SLURM_LOCALID"), 0) > 0 ||
                     (nodes > 0 && (t->total > nodes || number(env(l, "SLURM_PROCID"), 0) >= nodes)) ||
                     slurm_tasks_on_node(env(l, "SLURM_STEP_TASKS_PER_NODE"), -1) > 1;
    } else if (env(l, "OMPI_COMM_WORLD_RANK")) {
        t->launcher = "mpirun";
        t->one_a_node = "--map-by ppr:1:node";
        t->total = number(env(l, "OMPI_COMM_WORLD_SIZE"), -1);
        t->several = number(env(l, "OMPI_COMM_WORLD_LOCAL_SIZE"), 1) > 1;
    }
}

int scheduler_check_tasks(const struct home_look *look, int max_nodes, struct err *e)
{
    struct tasks t;
    look_tasks(look, &t);
    if (!t.several || t.total == max_nodes)
        return 0;
    if (t.total < 0)
        return err_set(e, ERR_USAGE,
                       "%s started several tasks on a node, and one crun starts all workers of a node: expected %s %s "
                       "(--standalone if each task is meant to run a job of its own)",
                       t.launcher, t.launcher, t.one_a_node);
    return err_set(e, ERR_USAGE,
                   "%s started %d tasks, several on a node, and one crun starts all workers of a node: expected %s %s, "
                   "or --nnodes %d if each task is meant to be a node (--standalone if it is meant to run a job of its "
                   "own)",
                   t.launcher, t.total, t.launcher, t.one_a_node, t.total);
}

static void take_first_host(struct scheduler *s, const char *list)
{
    if (list && slurm_first_host(list, s->host, sizeof s->host))
        return;
    s->host[0] = 0;
    snprintf(s->unread, sizeof s->unread, "%s", list ? list : "");
}

/* Each step of an allocation is a job of its own. */
static bool look_slurm(const struct home_look *l, int max_nodes, struct scheduler *s)
{
    struct tasks t;
    const char *job = env(l, "SLURM_JOB_ID"), *step = env(l, "SLURM_STEP_ID");
    const char *nodes = env(l, "SLURM_STEP_NODELIST");
    if (!job)
        return false;
    snprintf(s->job, sizeof s->job, step ? "%.60s.%.60s" : "%.60s", job, step ? step : "");
    look_tasks(l, &t);
    const bool tasks = t.several && t.total == max_nodes; /* they are nodes */
    s->node_rank = number(env(l, tasks ? "SLURM_PROCID" : "SLURM_NODEID"), -1);
    s->nodes = tasks ? t.total : number(env(l, "SLURM_STEP_NUM_NODES"), 0);
    if (!nodes)
        nodes = env(l, "SLURM_JOB_NODELIST");
    take_first_host(s, nodes);
    s->name = "Slurm";
    return true;
}

static bool look_pbs(const struct home_look *l, struct scheduler *s)
{
    const char *job = env(l, "PBS_JOBID"), *file = env(l, "PBS_NODEFILE");
    if (!job || !file)
        return false;
    snprintf(s->job, sizeof s->job, "%s", job);
    s->node_rank = number(env(l, "PBS_NODENUM"), -1);
    take_first_host(s, l->first_line(l->arg, file));
    s->name = "PBS";
    return true;
}

/* The host name of pod number I of Indexed Job J is J-I; the headless service of the job makes it known to the
 * others. */
static bool look_kubernetes(const struct home_look *l, struct scheduler *s)
{
    const char *index = env(l, "JOB_COMPLETION_INDEX"), *host = env(l, "HOSTNAME");
    const char *dash = host ? strrchr(host, '-') : NULL;
    if (!index || !env(l, "KUBERNETES_SERVICE_HOST") || !dash || strcmp(dash + 1, index) != 0)
        return false;
    snprintf(s->job, sizeof s->job, "%.*s", (int)(dash - host), host);
    s->node_rank = number(index, -1);
    const char *domain = l->domain(l->arg);
    const int n = snprintf(s->host, sizeof s->host, "%s-0%s%s", s->job, domain ? "." : "", domain ? domain : "");
    if (n >= (int)sizeof s->host)
        s->host[0] = 0;
    s->name = "Kubernetes";
    return true;
}

/* Open MPI 5 sets no address, but names the job after mpirun: "prterun-HOST-PID@1". */
static void look_prte(const struct home_look *l, struct scheduler *s)
{
    static const char first[] = "prterun-";
    const char *space = env(l, "PMIX_NAMESPACE");
    const char *host = space && strncmp(space, first, sizeof first - 1) == 0 ? space + sizeof first - 1 : NULL;
    const char *end = host ? strrchr(host, '-') : NULL;
    if (!end || end == host || (size_t)(end - host) >= sizeof s->host)
        return;
    snprintf(s->job, sizeof s->job, "%s", space);
    snprintf(s->host, sizeof s->host, "%.*s", (int)(end - host), host);
}

/* mpirun's own address is in "JOB.0;tcp://10.0.0.1,192.168.0.1:4711;tcp6://..."; node 0 runs where mpirun does,
 * mostly. */
static bool look_openmpi(const struct home_look *l, struct scheduler *s)
{
    const char *uri = env(l, "OMPI_MCA_orte_hnp_uri"), *job = env(l, "OMPI_MCA_ess_base_jobid");
    const char *tcp = uri ? strstr(uri, "tcp://") : NULL;
    if (!env(l, "OMPI_COMM_WORLD_RANK"))
        return false;
    s->name = "Open MPI";
    s->node_rank = -1; /* OMPI_COMM_WORLD_RANK counts processes, OMPI_COMM_WORLD_NODE_RANK those of a node */
    if (job)
        snprintf(s->job, sizeof s->job, "%s", job);
    if (tcp && job)
        snprintf(s->host, sizeof s->host, "%.*s", (int)strcspn(tcp + 6, ",:;"), tcp + 6);
    if (!uri)
        look_prte(l, s);
    return true;
}

void scheduler_look(const struct home_look *look, int max_nodes, struct scheduler *ret)
{
    *ret = (struct scheduler){.node_rank = -1};
    if (look_slurm(look, max_nodes, ret) || look_pbs(look, ret) || look_kubernetes(look, ret) ||
        look_openmpi(look, ret))
        ret->port = slurm_port(ret->job);
}

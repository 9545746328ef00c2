/* Prints the memory that was planned beside what is there. */
#include "worker/run/mem_report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/run/journal.h"
#include "worker/session/memory.h"
#include "worker/session/session.h"
#include "worker/session/traffic.h"

#define MIB (1024.0 * 1024)

static const char *const names[] = {
#define X(id, name) [id] = name,
    MEM_POINTS(X)
#undef X
};

/* On the channels of training, once a communicator. */
int64_t mem_report_sent(const struct session *s)
{
    int64_t sum = 0;
    for (int g = -1; g < LAYOUT_GROUPS; g++) {
        const struct comm *c = g < 0 ? s->comm : s->groups[g];
        if (!c || (g >= 0 && c == s->comm))
            continue;
        for (int ch = COMM_CONTROL + 1; ch < COMM_CHANNELS; ch++) {
            const int64_t n = comm_sent(c, (enum comm_channel)ch);
            if (n < 0)
                return -1;
            sum += n;
        }
    }
    return sum;
}

struct of_rank {
    struct memory_report planned; /* and its peaks */
    struct traffic traffic;
    struct mem_marks marks;
};

static void print_memory(struct journal *j, const struct of_rank *v, int n)
{
    journal_say(j, "memory in MiB, planned and held (begin: before the run opened anything; the others: above that)");
    journal_say(j, "%5s %9s %9s %9s %13s %9s %11s %9s %9s", "rank", "planned", names[MEM_BEGIN], names[MEM_MODEL],
                names[MEM_COMM], names[MEM_PLANS], names[MEM_STEP], names[MEM_NOW], "peak");
    for (int r = 0; r < n; r++) {
        double above[MEM_POINTS_N];
        const struct of_rank *k = &v[r];
        const int64_t peak = k->planned.device_peak ? k->planned.device_peak : k->planned.resident_peak;
        for (int p = 0; p < MEM_POINTS_N; p++)
            above[p] = (double)(k->marks.held[p] - (p > 0 ? k->marks.held[MEM_BEGIN] : 0)) / MIB;
        journal_say(j, "%5d %9.1f %9.1f %9.1f %13.1f %9.1f %11.1f %9.1f %9.1f", r,
                    (double)memory_planned(&k->planned) / MIB, above[MEM_BEGIN], above[MEM_MODEL], above[MEM_COMM],
                    above[MEM_PLANS], above[MEM_STEP], above[MEM_NOW], (double)(peak - k->marks.held[MEM_BEGIN]) / MIB);
    }
}

static void print_traffic(struct journal *j, const struct of_rank *v, int n)
{
    char sent[32];
    if (n == 1)
        return;
    journal_say(j, "sent by a rank in a step, in MiB");
    journal_say(j, "%5s %9s %9s", "rank", "planned", "sent");
    for (int r = 0; r < n; r++) {
        snprintf(sent, sizeof sent, v[r].marks.sent < 0 ? "not known" : "%.2f", (double)v[r].marks.sent / MIB);
        journal_say(j, "%5d %9.2f %9s", r, (double)traffic_bytes(&v[r].traffic) / MIB, sent);
    }
}

static cJSON *rank_json(const struct of_rank *k)
{
    cJSON *o = cJSON_CreateObject(), *memory = cJSON_AddObjectToObject(o, "memory"),
          *held = cJSON_AddObjectToObject(o, "held"), *sends = cJSON_AddObjectToObject(o, "sends");
#define X(field, text) cJSON_AddNumberToObject(memory, #field, (double)k->planned.field);
    MEMORY_PARTS(X)
#undef X
    cJSON_AddNumberToObject(memory, "sum", (double)memory_planned(&k->planned));
    for (int p = 0; p < MEM_POINTS_N; p++)
        cJSON_AddNumberToObject(held, names[p], (double)k->marks.held[p]);
    cJSON_AddNumberToObject(held, "peak",
                            (double)(k->planned.device_peak ? k->planned.device_peak : k->planned.resident_peak));
#define X(kind, text) cJSON_AddNumberToObject(sends, #kind, (double)k->traffic.kind.bytes);
    TRAFFIC_KINDS(X)
#undef X
    cJSON_AddNumberToObject(sends, "sum", (double)traffic_bytes(&k->traffic));
    if (k->marks.sent >= 0)
        cJSON_AddNumberToObject(o, "sent", (double)k->marks.sent);
    return o;
}

static void log_ranks(struct journal *j, const char *when, int64_t step, const struct of_rank *v, int n)
{
    cJSON *o = cJSON_CreateObject(), *ranks;
    cJSON_AddStringToObject(o, "when", when);
    ranks = cJSON_AddArrayToObject(o, "ranks");
    for (int r = 0; r < n; r++)
        cJSON_AddItemToArray(ranks, rank_json(&v[r]));
    journal_event(j, "mem-report", step, o);
}

int mem_report_tell(struct session *s, struct journal *j, const char *when, int64_t step, struct err *e)
{
    struct comm *c = s->comm;
    struct of_rank mine = {0}, *all;
    memory_mark(s, MEM_NOW);
    memory_report(s, &mine.planned);
    traffic_of_step(s, &mine.traffic);
    mine.marks = s->mem;
    if (!(all = calloc((size_t)c->world, sizeof *all)))
        return err_errno(e, ENOMEM, "the memory report of %d ranks", c->world);
    int rc = c->ops->all_gather(c, COMM_CONTROL, &mine, all, sizeof mine, NULL, e);
    if (rc == 0 && j->active) {
        journal_say(j, "--mem-report, %s:", when);
        print_memory(j, all, c->world);
        print_traffic(j, all, c->world);
        log_ranks(j, when, step, all, c->world);
    }
    free(all);
    return rc;
}

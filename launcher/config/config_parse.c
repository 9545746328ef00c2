/* How many nodes and workers. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "common/rdzv/machine/rdzv.h"
#include "launcher/base/cgroup_path.h"
#include "launcher/config/config.h"
#include "launcher/place/cores.h"
#include "launcher/place/gpus.h"

int config_parse_nnodes(const char *text, void *field, struct err *e)
{
    struct config_nodes *n = field;
    char min[32], low[ARG_NUMBER_MAX], high[ARG_NUMBER_MAX];
    const char *colon = strchr(text, ':');
    int64_t lo, hi;
    struct err why;
    const size_t len = colon ? (size_t)(colon - text) : strlen(text);
    const bool fits = len < sizeof min;
    snprintf(min, sizeof min, "%.*s", fits ? (int)len : 0, text);
    const char *first = args_without_blanks(min, low), *last = colon ? args_without_blanks(colon + 1, high) : first;
    if (!fits || parse_i64(first, "", 1, RDZV_NODES_MAX, &lo, &why) < 0 ||
        parse_i64(last, "", 1, RDZV_NODES_MAX, &hi, &why) < 0 || lo > hi)
        return err_set(e, ERR_USAGE, "expected N or MIN:MAX with 1 <= MIN <= MAX <= %d", RDZV_NODES_MAX);
    *n = (struct config_nodes){(int)lo, (int)hi};
    return 0;
}

/* Counted by config_count_workers(): where agents are started elsewhere, this machine does not matter. */
enum { WORKERS_AUTO = -3, WORKERS_CPU, WORKERS_GPU };

int config_parse_nproc(const char *text, void *field, struct err *e)
{
    static const struct {
        const char *word;
        int means;
    } words[] = {{"auto", WORKERS_AUTO}, {"cpu", WORKERS_CPU}, {"gpu", WORKERS_GPU}};
    int64_t *n = field;
    char number[ARG_NUMBER_MAX];
    struct err why;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(text, words[i].word) == 0) {
            *n = words[i].means;
            return 0;
        }
    if (parse_i64(args_without_blanks(text, number), "workers", 1, RDZV_SLOTS_MAX, n, &why) < 0)
        return err_set(e, ERR_USAGE, "expected a number from 1 to %d, auto, cpu or gpu", RDZV_SLOTS_MAX);
    return 0;
}

int config_count_workers(struct config *c, struct err *e)
{
    struct gpu gpus[GPUS_MAX];
    const int64_t means = c->nproc;
    if (means > 0)
        return 0;
    c->nproc = means == WORKERS_CPU ? 0 : gpus_usable(gpus);
    if (c->nproc <= 0 && means == WORKERS_GPU)
        return err_set(
            e, ERR_USAGE,
            "--nproc-per-node 'gpu': no GPU is usable here (CUDA_VISIBLE_DEVICES counts): expected a number, cpu or "
            "auto");
    if (c->nproc <= 0) {
        struct cgroup_tables t;
        cgroup_tables_read(&t, "/proc/self");
        c->nproc = cores_usable(&t);
        cgroup_tables_free(&t);
    }
    return 0;
}

static bool name_ok(const char *name, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)name[i]) && name[i] != '_')
            return false;
    return n > 0 && !isdigit((unsigned char)name[0]);
}

/* Words of a list are kept where they stand, in argv or environ; a comma ends them. */
int config_parse_export(const char *text, void *field, struct err *e)
{
    struct config_exports *x = field;
    const char *equals = strchr(text, '=');
    if (equals && !name_ok(text, (size_t)(equals - text)))
        return err_set(e, ERR_USAGE, "expected NAME=VALUE, NAME or NAME,NAME");
    for (const char *p = text;; p++) {
        const size_t n = equals ? strlen(p) : strcspn(p, ",");
        if (!equals && !name_ok(p, n))
            return err_set(e, ERR_USAGE, "expected NAME=VALUE, NAME or NAME,NAME");
        if (x->n == CONFIG_EXPORTS_MAX)
            return err_set(e, ERR_USAGE, "expected at most %d variables", CONFIG_EXPORTS_MAX);
        x->v[x->n++] = p;
        p += n;
        if (!*p)
            return 0;
    }
}

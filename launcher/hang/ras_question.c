/* Asks NCCL's RAS on a thread (ras_question.h). */
#include "launcher/hang/ras_question.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "launcher/hang/gather.h"
#include "launcher/witness/ras_client.h"

static void free_question(void *more)
{
    struct ras_question *q = more;
    ras_answer_free(&q->answer);
    free(q->job.processes);
    free(q->job.places);
    free(q);
}

/* Is it an answer for this job? */
static int read_ras(struct ras_question *q, const struct buf *text, struct err *e)
{
    struct err why;
    if (ras_answer_read(text, &q->job, &q->answer, &why) < 0)
        return err_set(e, ERR_CORRUPT, "that is not NCCL's RAS: %.120s", why.text);
    if (q->answer.ours > 0 || q->answer.strangers == 0)
        return 0;
    ras_answer_free(&q->answer);
    return err_set(e, ERR_REFUSED, "the RAS there knows no process of this job");
}

/* On a thread: ask the addresses in path until one answers; why: the last one's reason. */
static void look_at_ras(struct gathered *v, const atomic_bool *cancel)
{
    struct ras_question *q = v->more;
    const int64_t end_ms = clock_deadline(RAS_QUESTION_MS);
    struct err e;
    char *save;
    v->text.max = RAS_ANSWER_MAX;
    for (char *at = strtok_r(v->path, " ", &save); at && clock_left(end_ms) > 0 && !atomic_load(cancel);
         at = strtok_r(NULL, " ", &save)) {
        int rc = ras_ask(at, end_ms, cancel, &v->text, &e);
        q->too_old = rc == -EPROTONOSUPPORT;
        rc = rc < 0 ? rc : read_ras(q, &v->text, &e);
        if (rc == 0)
            return;
        snprintf(v->why, sizeof v->why, "%.40s: %.200s", at, e.text);
        if (q->too_old)
            return;
        q->asked++;
    }
}

struct gather *ras_question_start(char *addresses, const struct ras_job *job, const struct gather_options *o)
{
    struct gather_options options = *o;
    struct ras_question *q = calloc(1, sizeof *q);
    struct gather *g = gather_new(1);
    options.look = look_at_ras;
    if (g)
        *gather_at(g, 0) = (struct gathered){.path = addresses, .more = q, .free_more = free_question};
    if (g && q && addresses && ras_job_copy(&q->job, job) == 0 && gather_start(g, &options, NULL) == 0)
        return g;
    if (!g) {
        free(addresses);
        free(q);
    }
    gather_drop(g);
    return NULL;
}

struct ras_question *ras_question_result(struct gather *g, const char **ret_why)
{
    *ret_why = gather_at(g, 0)->why;
    return gather_at(g, 0)->more;
}

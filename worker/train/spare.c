/* Lets ranks without a place wait, and end as the others do. */
#include "worker/train/spare.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/include/crun.h"
#include "common/job/env_contract.h"
#include "common/job/exitcode.h"
#include "common/store/store.h"
#include "worker/config/config.h"
#include "worker/config/exit_code.h"
#include "worker/meet/meet.h"
#include "worker/parallel/layout.h"
#include "worker/session/session.h"
#include "worker/session/stop.h"

#define KEY "spares/end" /* the exit code of the others */
enum { LOOK_MS = 2000 }; /* a wish to stop is seen within */

int spare_is(const struct train_config *cfg, const struct env_contract *env, bool *ret, struct err *e)
{
    struct layout l;
    const int world = (int)env->world_size;
    TRY(layout_plan(&l, world, train_config_tensor(cfg, world), (int)cfg->stages, 0, e));
    *ret = layout_is_spare(&l, (int)env->rank);
    return 0;
}

static int await_end(struct store *s, int *ret_exit, struct err *e)
{
    struct buf text;
    int64_t code = 0;
    int rc = -ETIMEDOUT;
    buf_init(&text, 32);
    while (rc == -ETIMEDOUT && !stop_wanted())
        rc = store_wait_get(s, KEY, &text, LOOK_MS, e);
    if (rc == 0)
        rc = parse_i64(text.data, "exit code of the others", 0, 255, &code, e);
    else if (rc == -ETIMEDOUT) { /* there is nothing to save here */
        code = EXIT_REQUEUE;
        rc = 0;
    }
    *ret_exit = (int)code;
    buf_free(&text);
    return rc;
}

int spare_wait(const struct train_config *cfg, const struct env_contract *env, int *ret_exit, struct err *e)
{
    struct meet meet;
    TRY(meet_open(&meet, env, (int64_t)(cfg->comm_timeout * 1000), e));
    stop_ranks_have_met();
    log_info("layout", "rank %d is a spare: groups of %d ranks leave no place for it", (int)env->rank,
             train_config_tensor(cfg, (int)env->world_size) * (int)cfg->stages);
    crun_phase(CRUN_PHASE_PAUSED);
    int rc = await_end(meet.store, ret_exit, e);
    meet_close(&meet, 0);
    return rc < 0 ? err_wrap(e, "a spare rank waits for the others") : 0;
}

int spare_release(const struct session *s, int code, struct err *e)
{
    char text[16];
    if (!s->leads || s->layout.world == layout_members(&s->layout))
        return 0;
    const int n = snprintf(text, sizeof text, "%d", code);
    return store_set(s->meet.store, KEY, text, (size_t)n, (int64_t)(s->cfg->comm_timeout * 1000), e);
}

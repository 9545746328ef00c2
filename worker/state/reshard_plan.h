/* Who gives what to whom, where ranks of one layout become ranks of another one (reshard.h). Pure, but for the memory
 * of its lists.
 *
 * Elements of the model are counted through: parameter by parameter, as the whole model has them, each row-major.
 *
 *   old owners     |  a, b  |  b, c  |  c, a  |          three ranks, two owners each
 *   new owners     |    a      |       c      |          b is gone
 *   transfers      |self |c->a |c self        |
 *
 * What a rank has itself it takes from itself; all else comes from the rank that has given least so far. */
#ifndef CRUN_WORKER_STATE_RESHARD_PLAN_H
#define CRUN_WORKER_STATE_RESHARD_PLAN_H

#include <stddef.h>
#include <stdint.h>

struct err;

/* Elements [first, first + n) of the model, which lie side by side in a rank's arena of parameters, from `at` on. */
struct reshard_span {
    uint64_t first, n, at;
};

/* Of a rank: ascending, without overlap. */
struct reshard_list {
    const struct reshard_span *spans;
    size_t n;
};

/* Elements [first, first + n) of the model: inside one span of what `from` has, and one of what `to` wants. */
struct reshard_transfer {
    uint64_t first, n;
    int from, to;
};

/* has[world], wants[world]: any may be empty. *ret: *ret_n transfers of at most `most` elements that give each rank
 * each element that it wants once, for the caller to free(), the same from the same lists; in ascending order of
 * elements, so that ranks which follow it one after another never wait in a circle. -ENODATA: some element is wanted
 * that nobody has. */
int reshard_plan(const struct reshard_list *has, const struct reshard_list *wants, int world, size_t most,
                 struct reshard_transfer **ret, size_t *ret_n, struct err *e);

#endif

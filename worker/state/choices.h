/* What a device chose by timing (cuDNN's engines) is kept in the checkpoint and taken up again before a resumed run
 * plans, so that it gives the same bits (decision 0006). Devices that choose by rule have nothing to keep. */
#ifndef CRUN_WORKER_CHOICES_H
#define CRUN_WORKER_CHOICES_H

#include <cjson/cJSON.h>

struct comm;
struct device;
struct err;

/* Put the device's choices into a manifest's meta as "plans". -ENOMEM. */
int choices_add(struct device *d, cJSON *meta, struct err *e);

/* All ranks, before planning: rank 0 reads "plans" of the newest checkpoint in dir (if there is one), all take them up.
 * What cannot be had here is a warning that bits may differ, not an error; the errors are those of the communicator. */
int choices_take_up(struct device *d, struct comm *c, const char *dir, struct err *e);

/* All ranks, rank `root` with the outcome (0 or an error) of its planning: the others take up what it chose, before
 * they plan; the device is timed once, and all ranks compute with the same engines. What one of them cannot have is a
 * warning. Errors: root's, on root; -ECANCELED on the others then; the communicator's. */
int choices_share(struct device *d, struct comm *c, int root, int rc, struct err *e);

#endif

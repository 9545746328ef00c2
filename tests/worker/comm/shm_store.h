/* A store in shared memory for tests: shared by threads, and by the processes forked after it was opened. It knows set,
 * get and wait, which is all that opening a communicator needs. */
#ifndef CRUN_TESTS_SHM_STORE_H
#define CRUN_TESTS_SHM_STORE_H

#include "common/store/store.h"

struct store *shm_store_open(void); /* aborts without memory */
void shm_store_close(struct store *s);

#endif

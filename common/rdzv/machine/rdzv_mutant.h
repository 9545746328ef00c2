/* tests/sim compiles the sources of the log-hosted rendezvous again with one fault sown into them, to show that the
 * simulator sees it. */
#ifndef CRUN_COMMON_RDZV_MUTANT_H
#define CRUN_COMMON_RDZV_MUTANT_H

#ifndef RDZV_HOST_MUTANT
#define RDZV_HOST_MUTANT 0
#endif
#define HOST_SOUND(n) (RDZV_HOST_MUTANT != (n))

#endif

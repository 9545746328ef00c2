/* Redis' key patterns: * ? [abc] [^a] [a-z] \x. A text takes at most O(pattern x text) steps. Steps are subtracted
 * from *work, and when it is used up nothing matches: with one GLOB_WORK for all texts of a request no pattern can
 * stall the server. */
#ifndef CRUN_RENDEZVOUSD_GLOB_H
#define CRUN_RENDEZVOUSD_GLOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GLOB_WORK 1000000 /* a few milliseconds */

bool glob_match(const char *pattern, size_t pattern_len, const char *text, size_t text_len, uint64_t *work);

#endif

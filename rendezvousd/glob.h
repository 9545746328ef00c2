/* Redis' key patterns: * ? [abc] [^a] [a-z] \x. At most O(pattern x text) steps, so that no pattern can stall the server. */
#ifndef CRUN_RENDEZVOUSD_GLOB_H
#define CRUN_RENDEZVOUSD_GLOB_H

#include <stdbool.h>
#include <stddef.h>

bool glob_match(const char *pattern, size_t pattern_len, const char *text, size_t text_len);

#endif

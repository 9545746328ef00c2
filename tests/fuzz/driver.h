/* What the fuzz targets have in common: numbers drawn from a seed, changes of inputs, and a main() where libFuzzer is
 * not there.
 *
 * With clang and -fsanitize=fuzzer (FUZZ_WITH_LIBFUZZER) a target is libFuzzer's. Else fuzz_main() runs the kept
 * corpus, then changes it by a seed. The environment says FUZZ_CORPUS, the file, a line of hexadecimal digits for each
 * input; FUZZ_RUNS; FUZZ_SEED. A process that has taken more than 256 MiB (1 GiB under AddressSanitizer) names the
 * input and aborts. */
#ifndef CRUN_TESTS_FUZZ_DRIVER_H
#define CRUN_TESTS_FUZZ_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FUZZ_INPUT_MAX = 8192 };

struct fuzz_input {
    uint8_t bytes[FUZZ_INPUT_MAX];
    size_t n;
};

/* What each target is. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

_Noreturn void fuzz_die(const char *why); /* says so under the program's name, and aborts */

void fuzz_seed(uint64_t seed);
uint64_t fuzz_draw(uint64_t below); /* 0 to below - 1 */

/* n bytes into the input, unless it then had more than `most`. at <= in->n. */
void fuzz_insert(struct fuzz_input *in, size_t at, const void *data, size_t n, size_t most);
void fuzz_remove(struct fuzz_input *in, size_t at); /* one byte, if there is one */
const struct fuzz_input *fuzz_kept(void);           /* any of the corpus */

struct fuzz_plan {
    uint64_t runs;                         /* after the corpus, if FUZZ_RUNS does not say */
    void (*change)(struct fuzz_input *in); /* one of the corpus, to be run next */
    const char *kept;                      /* what held for all, a sentence's end: "leave the parser whole" */
};

/* The exit code; a line of TAP. */
int fuzz_main(const struct fuzz_plan *p);

#endif

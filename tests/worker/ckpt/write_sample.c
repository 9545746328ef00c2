/* write_sample FOLDER: saves step 7 of the tests' state there, for readers in other languages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

#include "common/base/err.h"
#include "tests/worker/ckpt/state.h"

int main(int argc, char **argv)
{
    struct err e = {0};
    if (argc == 2 && state_save(argv[1], 7, 0, &e) == 0)
        return 0;
    fprintf(stderr, "write_sample FOLDER: %s\n", e.text);
    return 1;
}

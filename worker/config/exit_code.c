/* Chooses the exit code of trainer for an error. */
#include "worker/config/exit_code.h"

#include <errno.h>

#include "common/base/err.h"
#include "common/job/exitcode.h"

int exit_code_of(int rc)
{
    switch (rc) {
    case ERR_USAGE:
    case -EINVAL:
        return EXIT_USAGE_ERROR;
    case ERR_DATA:
    case ERR_CORRUPT:
    case ERR_REFUSED:
        return EXIT_DATA;
    case ERR_MISMATCH:
        return EXIT_MISMATCH;
    case ERR_FAULTY:
        return EXIT_FAULTY;
    case -ENODEV:
    case -ENOTSUP:
        return EXIT_UNAVAILABLE;
    case ERR_OUTPUT:
    case -ENOSPC:
        return EXIT_CANT_CREATE;
    default:
        return EXIT_FAIL;
    }
}

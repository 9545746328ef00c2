/* Exit codes of crun, rendezvousd and trainer; one list for code, docs and tests.
 * A worker's own code, or 128 + signal, passes through crun unchanged. */
#ifndef CRUN_COMMON_EXITCODE_H
#define CRUN_COMMON_EXITCODE_H

#define EXIT_CODES(X)                                                                                                  \
    X(EXIT_OK, 0, "training (or the program) is complete")                                                             \
    X(EXIT_FAIL, 1, "the program failed; the last line on stderr says why")                                            \
    X(EXIT_USAGE_ERROR, 2, "wrong command line or configuration; nothing was started")                                 \
    X(EXIT_DATA, 65, "input data cannot be used: missing folder, no classes, corrupt with --strict-data")              \
    X(EXIT_UNAVAILABLE, 69, "something needed is not there: device, server, library")                                  \
    X(EXIT_INTERNAL, 70, "a fault in this program itself")                                                             \
    X(EXIT_UNKILLABLE, 71,                                                                                             \
      "the kernel did not end a process of the job in time (--kill-timeout); pid and wait channel named")              \
    X(EXIT_SPARE, 72, "a spare was not needed: the job succeeded, and nothing ran here (--spare-exit-code)")           \
    X(EXIT_CANT_CREATE, 73, "an output file or folder cannot be written")                                              \
    X(EXIT_REQUEUE, 75, "stopped in good order before the end (drain, resize): start it again to go on")               \
    X(EXIT_FAULTY, 76, "a rank whose state was silently corrupted, and is mended, makes room for another process")     \
    X(EXIT_MISMATCH, 78, "a checkpoint or a peer does not fit this job: architecture, labels, seed")                   \
    X(EXIT_HUNG, 124, "a worker made no progress (--hang-timeout) and no restart was left; timeout(1) uses it too")    \
    X(EXIT_CANNOT_EXEC, 126, "the program was found but cannot be executed")                                           \
    X(EXIT_NOT_FOUND, 127, "the program was not found")

enum exit_code {
#define X(name, value, text) name = value,
    EXIT_CODES(X)
#undef X
};

#endif

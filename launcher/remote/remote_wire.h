/* The protocol between a crun that starts agents on other hosts (remote.h) and each agent, over its standard input, so
 * that nothing is on a command line where other users see it:
 *
 *     "crun-agent 2 BYTES\n", then BYTES of NUL-terminated words: C folder, E NAME=VALUE, A argument; T "principal
 *     secret" and S stand among the arguments for the options that name the secret and the rest of this input
 *
 * After that each byte is a signal, plus REMOTE_TYPED if it was typed; SIGTSTP stops the workers until SIGCONT. The
 * byte REMOTE_ASK is not a signal: the agent answers it with a line REMOTE_ALIVE on its standard error. There it
 * also prints REMOTE_JOINED once, when it has heard of the job from the rendezvous. The end of the input means:
 * stop. The agent's first line of output is REMOTE_HELLO, its last one REMOTE_BYE: an exit code without REMOTE_BYE
 * is that of ssh. Each of these words may come after an unfinished line of another program. */
#ifndef CRUN_LAUNCHER_REMOTE_WIRE_H
#define CRUN_LAUNCHER_REMOTE_WIRE_H

#include <stdint.h>

#include "common/base/buf.h"

struct err;

#define REMOTE_MAGIC "crun-agent 2"
#define REMOTE_HELLO "\001" REMOTE_MAGIC
#define REMOTE_BYE "\002" REMOTE_MAGIC
#define REMOTE_ALIVE "\006" REMOTE_MAGIC
#define REMOTE_JOINED "\005" REMOTE_MAGIC
#define REMOTE_ORDER_MAX (512u << 10) /* bytes */
#define REMOTE_ASK 0
#define REMOTE_TYPED 0x80
#define REMOTE_COMMAND "remote-agent"

enum remote_word {
    REMOTE_FOLDER = 'C',
    REMOTE_TOKEN = 'T',
    REMOTE_SIGNALS = 'S',
    REMOTE_VARIABLE = 'E',
    REMOTE_ARGUMENT = 'A'
};

/* Append a word. -ENOMEM, -E2BIG. */
int remote_encode(struct buf *b, enum remote_word kind, const char *text);

/* Read the first part of fd. ret: the words, each with its NUL; a NUL also follows the last. -ETIMEDOUT,
 * ERR_CORRUPT. Blocks up to timeout_ms. */
int remote_read(int fd, struct buf *ret, int64_t timeout_ms, struct err *e);

#endif

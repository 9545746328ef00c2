/* Asks PyTorch's Flight Recorder for the calls that each rank made, with sizes and types, which RAS does not know.
 *
 * Ways to ask a process, in this order. Each wait has a deadline; all block, so do not call them on a loop's thread.
 *   - TORCH_WORKER_SERVER_SOCKET: the debug socket of a program that has one (torch.distributed.elastic.control_plane).
 *     It answers in JSON, which is compared;
 *   - TORCH_NCCL_DEBUG_INFO_PIPE_FILE: a pipe that the legacy NCCL back end opens. A byte makes it write a dump;
 *   - otherwise only PyTorch's own dump after NCCL's timeout is left.
 * Dumps are pickles, which nobody reads here: a pickle is a program. They lie at TORCH_FR_DUMP_TEMP_FILE with the
 * rank behind it; crun puts that beside the log files (worker_setup.c), and `python -m
 * torch.distributed.flight_recorder.fr_trace` reads them. */
#ifndef CRUN_LAUNCHER_FLIGHT_H
#define CRUN_LAUNCHER_FLIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct buf;
struct cJSON;

#define FLIGHT_DUMP_VARIABLE "TORCH_FR_DUMP_TEMP_FILE"
#define FLIGHT_DUMP_OLD "TORCH_NCCL_DEBUG_INFO_TEMP_FILE" /* its name in older PyTorch */
#define FLIGHT_MAX (32u << 20)

enum flight_way {
    FLIGHT_NONE,
    FLIGHT_SOCKET, /* its trace is in the buffer */
    FLIGHT_PIPE,   /* the process writes a dump to the path in the buffer */
    FLIGHT_DUMP,   /* it has written one, likewise */
};

/* Ask the process of a rank, into an empty buffer; end_ms: deadline by clock_ms(). */
enum flight_way flight_ask(pid_t pid, int rank, int64_t end_ms, struct buf *out);

/* Compare the traces of ranks. Describes the first call of a process group that they made differently. False: there
 * is none. */
struct flight_trace {
    int rank;
    struct cJSON *tree; /* of FLIGHT_SOCKET's text; NULL: none */
};
bool flight_mismatch(const struct flight_trace *v, int n, char *out, size_t cap);

#endif

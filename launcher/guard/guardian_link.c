/* The agent's side of the link to its guardian (guardian.h). */
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/net/fds.h"
#include "launcher/guard/guardian.h"
#include "launcher/guard/link_words.h"
#include "launcher/guard/patience.h"
#include "launcher/stdio/stdin_file.h"

/* Send a word without waiting. If the guardian is stopped, the link may be full. That is harmless: a connection
 * without its duplicate ends with a reset, and the guardian reads the lease again in time. */
static void send_word(const struct guardian_link *l, char word, int fd)
{
    const struct iovec part = {&word, 1};
    fds_send(l->guardian_fd, &part, 1, &fd, fd >= 0);
}

void guardian_hold(const struct guardian_link *l, int fd)
{
    const struct linger reset = {.l_onoff = 1};
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    send_word(l, fd >= 0 ? WORD_HOLD : WORD_DROP, fd);
}

void guardian_prove(int fd)
{
    const struct linger orderly = {0};
    if (fd < 0)
        return;
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &orderly, sizeof orderly);
    shutdown(fd, SHUT_WR); /* close(2) alone would reset a connection that has unread bytes */
}

void guardian_lease(const struct guardian_link *l, int64_t until_ms)
{
    const uint64_t one = 1;
    const int64_t before = atomic_exchange(l->lease_ms, until_ms);
    if (!until_ms || (before && until_ms >= before)) /* a guardian that waits for the earlier time looks soon enough */
        return;
    send_word(l, WORD_LEASE, -1);
    const ssize_t ignored = l->deputy_fd >= 0 ? write(l->deputy_fd, &one, sizeof one) : 0;
    (void)ignored;
}

void guardian_start_console(const struct guardian_link *l, bool keeps_stdin)
{
    console_files_enter(l->console, keeps_stdin);
    const int kept = keeps_stdin ? stdin_file_open() : -1;
    send_word(l, WORD_CONSOLE, kept);
    if (kept >= 0)
        close(kept);
}

void guardian_start_output(const struct guardian_link *l)
{
    send_word(l, WORD_OUTPUT, -1);
}

void guardian_start_gauges(const struct guardian_link *l)
{
    send_word(l, WORD_GAUGES, -1);
}

static uint64_t bits_of(const sigset_t *set)
{
    uint64_t bits = 0;
    for (int s = 1; s <= 64; s++)
        if (sigismember(set, s) == 1)
            bits |= UINT64_C(1) << (s - 1);
    return bits;
}

void guardian_signals(const struct guardian_link *l, const sigset_t *set, const sigset_t *stops)
{
    atomic_store(&l->board->stops, bits_of(stops));
    atomic_store(l->signals, bits_of(set));
    send_word(l, WORD_SIGNALS, -1);
}

void guardian_stopping(const struct guardian_link *l, int64_t until_ms)
{
    board_stopping(l->board, until_ms);
    send_word(l, WORD_BOARD, -1);
}

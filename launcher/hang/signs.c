/* Reads processor time and bytes of a worker from /proc, for quiet.h (signs.h). */
#include "launcher/hang/signs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "launcher/guard/procs.h"
#include "launcher/hang/quiet.h"

/* "rchar: 3980\nwchar: 12\n..." */
static uint64_t bytes_of(pid_t pid)
{
    char text[512];
    uint64_t n = 0;
    if (file_read_text(text, sizeof text, "/proc/%d/io", (int)pid) < 0)
        return 0;
    const char *in = strstr(text, "rchar: "), *out = strstr(text, "wchar: ");
    n += in ? strtoull(in + 7, NULL, 10) : 0;
    n += out ? strtoull(out + 7, NULL, 10) : 0;
    return n;
}

bool signs_read(pid_t pid, struct quiet_sample *ret)
{
    struct proc self;
    struct procs below;
    if (!proc_read(pid, &self))
        return false;
    *ret = (struct quiet_sample){.cpu_ns = self.cpu_ns, .bytes = bytes_of(pid)};
    if (procs_below(&below, pid))
        for (size_t i = 0; i < below.n; i++)
            ret->cpu_ns += below.v[i].cpu_ns;
    procs_free(&below);
    return true;
}

void signs_place(pid_t pid, struct quiet_rank *ret)
{
    char text[PROC_WAIT_MAX];
    const char *in = strncmp(proc_wait_text(pid, text), " in ", 4) == 0 ? text + 4 : "?";
    snprintf(ret->wait, sizeof ret->wait, "%.*s", (int)sizeof ret->wait - 1, in);
    for (char *p = ret->wait; (p = strchr(p, ' '));)
        *p = '-';
}

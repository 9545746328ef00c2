/* Parses Slurm's lists of hosts and tasks, and chooses a job's port (slurm.h). */
#include "common/job/slurm.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define PORTS 3000

/* FNV-1a. */
int slurm_port(const char *job)
{
    uint32_t h = 2166136261u;
    for (; *job; job++)
        h = (h ^ (unsigned char)*job) * 16777619u;
    return RDZV_PORT + (int)(h % PORTS);
}

/* Does the text after the first number in brackets go on as a list can: with an end, another number, or a range that
 * does not run backwards? */
static bool goes_on(const char *first, size_t digits)
{
    const char *next = first + digits;
    if (*next != '-')
        return *next == ',' || *next == ']';
    const size_t last = strspn(next + 1, "0123456789");
    const char behind = next[1 + last];
    return last > 0 && (behind == ',' || behind == ']') && strtoull(next + 1, NULL, 10) >= strtoull(first, NULL, 10);
}

/* Each bracket is closed before the next one, and before the list ends. */
static bool is_whole(const char *list)
{
    bool open = false;
    for (const char *p = list; *p; p++) {
        if (*p != '[' && *p != ']')
            continue;
        if (open == (*p == '['))
            return false;
        open = *p == '[';
    }
    return !open;
}

bool slurm_first_host(const char *list, char *ret, size_t cap)
{
    const size_t name = strcspn(list, "[,");
    size_t digits = 0;
    if (list[name] == '[') {
        digits = strspn(list + name + 1, "0123456789");
        const char *close = strchr(list + name, ']');
        if (digits == 0 || !goes_on(list + name + 1, digits) || !close || (close[1] && close[1] != ','))
            return false; /* text after the bracket would be part of the name */
    }
    if (name == 0 || name + digits >= cap || !is_whole(list))
        return false;
    memcpy(ret, list, name);
    if (digits)
        memcpy(ret + name, list + name + 1, digits);
    ret[name + digits] = 0;
    for (const char *p = ret; *p; p++)
        if (!isalnum((unsigned char)*p) && !strchr(".-_", *p))
            return false;
    return true;
}

int64_t slurm_tasks_on_node(const char *list, int64_t node)
{
    int64_t most = 0;
    while (list && *list) {
        char *end;
        long long tasks = strtoll(list, &end, 10), repeat = 1;
        if (end == list || tasks < 1)
            return 0;
        if (strncmp(end, "(x", 2) == 0) {
            repeat = strtoll(end + 2, &end, 10);
            if (*end++ != ')' || repeat < 1)
                return 0;
        }
        if (node >= 0 && node < repeat)
            return tasks;
        node -= node >= 0 ? repeat : 0;
        most = tasks > most ? tasks : most;
        if (*end && *end != ',')
            return 0;
        list = *end ? end + 1 : end;
    }
    return node < 0 ? most : 0;
}

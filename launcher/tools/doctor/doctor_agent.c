/* `crun doctor-agent`: answers requests about its machine on standard input (doctor_agent.h). */
#include "launcher/tools/doctor/doctor_agent.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/file.h"
#include "common/job/exitcode.h"
#include "common/json/json.h"
#include "launcher/tools/doctor/facts.h"
#include "launcher/tools/doctor/probe.h"

struct agent {
    pid_t listener; /* 0: none */
};

static void complain(cJSON *out, const char *fmt, const char *path)
{
    char text[512];
    const int why = errno;
    snprintf(text, sizeof text, fmt, path, strerror(why));
    cJSON_AddStringToObject(out, "error", text);
}

/* --- what is asked */

static cJSON *do_facts(struct agent *a, const cJSON *ask)
{
    static struct facts facts;
    const struct facts_ask what = {.nonce = json_str_or(ask, "nonce", NULL) ? json_str_or(ask, "nonce", NULL) : "",
                                   .token_file = json_str_or(ask, "token_file", NULL),
                                   .folder = json_str_or(ask, "folder", NULL)};
    facts_read(&what, &facts);
    return facts_to_json(&facts);
}

static cJSON *do_clock(struct agent *a, const cJSON *ask)
{
    struct timespec t;
    cJSON *out = cJSON_CreateObject();
    clock_gettime(CLOCK_REALTIME, &t);
    cJSON_AddNumberToObject(out, "us", (double)t.tv_sec * 1e6 + (double)(t.tv_nsec / 1000));
    return out;
}

static cJSON *do_listen(struct agent *a, const cJSON *ask)
{
    const char *nonce = json_str_or(ask, "nonce", NULL);
    cJSON *out = cJSON_CreateObject();
    struct err e = {0};
    int port = 0;
    if (a->listener > 0 || !nonce || strlen(nonce) != AUTH_HEX)
        cJSON_AddStringToObject(out, "error", "not such a request");
    else if (probe_listen(nonce, &a->listener, &port, &e) < 0)
        cJSON_AddStringToObject(out, "error", e.text);
    else
        cJSON_AddNumberToObject(out, "port", port);
    return out;
}

static cJSON *do_dial(struct agent *a, const cJSON *ask)
{
    const char *host = json_str_or(ask, "host", NULL), *nonce = json_str_or(ask, "nonce", NULL);
    const double port = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(ask, "port"));
    struct probe p;
    cJSON *out = cJSON_CreateObject();
    if (!host || !(port >= 1 && port <= 65535) || (nonce && strlen(nonce) != AUTH_HEX)) {
        cJSON_AddStringToObject(out, "error", "not such a request");
        return out;
    }
    probe_dial(host, (int)port, nonce, &p);
    cJSON_AddStringToObject(out, "state", probe_state_name(p.state));
    cJSON_AddStringToObject(out, "text", p.text);
    cJSON_AddStringToObject(out, "iface", p.iface);
    cJSON_AddNumberToObject(out, "mtu", p.mtu);
    cJSON_AddNumberToObject(out, "passes", p.passes);
    return out;
}

static cJSON *do_write(struct agent *a, const cJSON *ask)
{
    const char *path = json_str_or(ask, "path", NULL), *text = json_str_or(ask, "text", NULL);
    cJSON *out = cJSON_CreateObject();
    const int fd = path && text ? open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644) : -1;
    const int rc = fd < 0 ? -errno : file_write_all(fd, text, strlen(text));
    errno = -rc;
    if (rc < 0 || fsync(fd) < 0)
        complain(out, "cannot write %s: %s", path ? path : "");
    if (fd >= 0)
        close(fd);
    return out;
}

static cJSON *do_read(struct agent *a, const cJSON *ask)
{
    const char *path = json_str_or(ask, "path", NULL);
    char text[256];
    cJSON *out = cJSON_CreateObject();
    const int rc = path ? file_read_text(text, sizeof text, "%s", path) : -EINVAL;
    errno = -rc;
    if (rc < 0)
        complain(out, "cannot read %s: %s", path ? path : "");
    else
        cJSON_AddStringToObject(out, "text", text);
    return out;
}

static cJSON *do_remove(struct agent *a, const cJSON *ask)
{
    const char *path = json_str_or(ask, "path", NULL);
    cJSON *out = cJSON_CreateObject();
    if (!path || unlink(path) < 0)
        complain(out, "cannot remove %s: %s", path ? path : "");
    return out;
}

/* --- the loop */

static const struct {
    const char *word;
    cJSON *(*act)(struct agent *a, const cJSON *ask);
} requests[] = {
    {"facts", do_facts}, {"clock", do_clock}, {"listen", do_listen}, {"dial", do_dial},
    {"write", do_write}, {"read", do_read},   {"remove", do_remove},
};

static cJSON *act(struct agent *a, const char *line)
{
    cJSON *ask = cJSON_Parse(line), *out = NULL;
    const char *word = json_str_or(ask, "do", NULL);
    for (size_t i = 0; word && i < sizeof requests / sizeof *requests; i++)
        if (strcmp(word, requests[i].word) == 0)
            out = requests[i].act(a, ask);
    cJSON_Delete(ask);
    if (out)
        return out;
    out = cJSON_CreateObject();
    cJSON_AddStringToObject(out, "error", "not such a request");
    return out;
}

static int reply(cJSON *answer)
{
    char *text = cJSON_PrintUnformatted(answer);
    cJSON_Delete(answer);
    const int rc = text ? printf(DOCTOR_MARK "%s\n", text) : -1;
    free(text);
    return rc > 0 && fflush(stdout) == 0 ? 0 : -EPIPE;
}

int doctor_agent_main(void)
{
    struct agent a = {0};
    char *line = malloc(DOCTOR_LINE_MAX);
    signal(SIGPIPE, SIG_IGN);
    while (line && fgets(line, DOCTOR_LINE_MAX, stdin) && reply(act(&a, line)) == 0)
        ;
    if (a.listener > 0) {
        kill(a.listener, SIGKILL);
        waitpid(a.listener, NULL, 0);
    }
    free(line);
    return EXIT_OK;
}

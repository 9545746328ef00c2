/* Climbs the rungs of gpu_ladder.h: starts each run, waits for it, and compares its losses. */
#include "worker/cli/gpu_ladder.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/path.h"
#include "common/job/exitcode.h"

enum { ARGS_MAX = 64, TAIL = 1 << 14 };
#define APART 0.05 /* of losses after some twenty steps at a small rate, whatever rounds */

static const struct rung {
    const char *name, *args; /* beyond what all have; words */
    bool trains;
    int gpus;
    enum net { LADDERS, ATTENTION, TOKENS } net;
    bool first; /* of its network: others' losses are compared with this one's */
} rungs[] = {
    {"device", "gpu-info --json", false, 1},
    {"plain convolutions", "--no-cuda-graphs --no-conv-fusion --deterministic", true, 1, .first = true},
    {"halves", "--no-cuda-graphs --no-conv-fusion --deterministic --amp fp16", true, 1},
    {"fused patterns", "--no-cuda-graphs --deterministic --amp fp16", true, 1},
    {"graphs", "--deterministic --amp fp16", true, 1},
    {"autotune", "--amp fp16 --tune-seconds 60", true, 1},
    {"two ranks", "--amp fp16 --tune-seconds 60 --sync-bn --gpus 0,1", true, 2},
    {"two ranks on one GPU", "--amp fp16 --deterministic --sync-bn --procs 2 --oversubscribe --comm gloo", true, 1},
    {"own attention", "--no-cuda-graphs --no-conv-fusion --deterministic --amp fp16", true, 1, ATTENTION, true},
    {"attention, epilogues", "--no-cuda-graphs --amp fp16", true, 1, ATTENTION},
    {"tokens", "--no-cuda-graphs --no-conv-fusion --deterministic --amp fp16", true, 1, TOKENS, true},
    {"tokens, graphs", "--amp bf16 --tune-seconds 60", true, 1, TOKENS},
};
enum { RUNGS = sizeof rungs / sizeof *rungs };

/* Attention and products that add a bias, as in vision transformers, small. */
static const char attention_net[] = "input\n"
                                    "conv stem out=64 kernel=16 stride=16\n"
                                    "prepend token\n"
                                    "position table\n"
                                    "norm norm.1\n"
                                    "linear qkv out=192 each=yes\n"
                                    "attention attention heads=2\n"
                                    "linear proj out=64 each=yes\n"
                                    "norm norm.2\n"
                                    "linear mlp.1 out=256 each=yes\n"
                                    "gelu gelu\n"
                                    "linear mlp.2 out=64 each=yes\n"
                                    "add add with=table\n"
                                    "pick class\n"
                                    "classifier fc\n";

/* What language models have: a tied head, rotary positions, gated layers, grouped queries. */
static const char tokens_net[] = "tokens length=32 vocabulary=500\n"
                                 "embed wte out=64\n"
                                 "norm norm.1 rms=yes bias=no\n"
                                 "linear qkv out=128 each=yes bias=no\n"
                                 "rope rope heads=2 kv_heads=1\n"
                                 "attention attention heads=2 kv_heads=1 causal=yes\n"
                                 "linear proj out=64 each=yes\n"
                                 "add attended with=wte\n"
                                 "linear up out=96 each=yes bias=no\n"
                                 "linear gate from=attended out=96 each=yes bias=no\n"
                                 "silu act\n"
                                 "mul product with=up\n"
                                 "linear down out=64 each=yes\n"
                                 "add add with=attended\n"
                                 "norm norm.2\n"
                                 "head head tied=wte\n";
enum { TOKENS_HEADER = 20240520, TOKENS_N = 1 << 14 }; /* a file as llm.c's: 256 words, tokens of two bytes */

struct climb {
    const struct gpu_ladder *l;
    char text[8192]; /* of the command line: its words, each with its NUL */
    size_t text_n;
    char *argv[ARGS_MAX];
    int argc;
    char folder[1024], log[1100];
    double plain, loss; /* last loss of the plain rung, of this one */
};

/* One word more, which may hold spaces; one that is too much is left out. */
__attribute__((format(printf, 2, 3))) static void add_word(struct climb *c, const char *format, ...)
{
    const size_t room = sizeof c->text - c->text_n;
    char *to = c->text + c->text_n;
    va_list ap;
    va_start(ap, format);
    const int n = vsnprintf(to, room, format, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= room || c->argc == ARGS_MAX - 1)
        return;
    c->text_n += (size_t)n + 1;
    c->argv[c->argc++] = to;
    c->argv[c->argc] = NULL;
}

static void add_words(struct climb *c, const char *words)
{
    for (size_t n; *words; words += n + strspn(words + n, " ")) {
        n = strcspn(words, " ");
        add_word(c, "%.*s", (int)n, words);
    }
}

static void add_option(struct climb *c, const char *name, int value)
{
    add_word(c, "--%s", name);
    add_word(c, "%d", value);
}

/* check: each kernel is waited for and looked at. */
static void command_of(struct climb *c, const struct rung *r, bool check)
{
    const struct gpu_ladder *l = c->l;
    c->text_n = 0;
    c->argc = 0;
    add_word(c, "%s", l->self);
    if (r->trains) {
        add_words(c, "--num-epochs 1000 --lr 0.001 --lr-policy fixed --seed 1 --device cuda --log-level debug");
        add_option(c, "batch-size", l->batch);
        add_option(c, "max-steps", l->steps);
        if (r->net == TOKENS) {
            add_word(c, "--train-data=%s/tokens.bin", l->out);
            add_word(c, "--arch=%s/tokens.net", l->out);
        } else {
            add_words(c, "--train-data null --num-labels 10");
            add_option(c, "null-images", l->batch * l->steps);
            add_option(c, "image-size", l->image_size);
            if (r->net == ATTENTION)
                add_word(c, "--arch=%s/attention.net", l->out);
            else
                add_word(c, "--arch=%s", l->arch);
        }
        add_word(c, "--plan-cache=%s/plans", l->out);
        add_word(c, "--log-dir=%s", c->folder);
    }
    add_words(c, r->args);
    if (check)
        add_word(c, "--cuda-check");
}

/* --- a process with a deadline */

/* fd as `to`, also behind exec; it is `to` already where that was closed before. */
static void be_descriptor(int fd, int to)
{
    if (fd == to)
        fcntl(fd, F_SETFD, 0);
    else
        dup2(fd, to);
}

/* Between fork and exec: system calls only. */
static _Noreturn void become_rung(const struct climb *c, int in, int log, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* it died before we asked for the signal */
        _exit(EXIT_CANNOT_EXEC);
    be_descriptor(in, 0);
    be_descriptor(log, 1);
    be_descriptor(log, 2);
    execve(c->l->self, c->argv, environ);
    _exit(EXIT_CANNOT_EXEC);
}

static int start(struct climb *c, pid_t *ret, struct err *e)
{
    const pid_t parent = getpid();
    const int in = open("/dev/null", O_RDONLY | O_CLOEXEC),
              log = open(c->log, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    int rc = 0;
    if (in < 0 || log < 0)
        rc = err_errno(e, errno, "open %s", in < 0 ? "/dev/null" : c->log);
    else if ((*ret = fork()) == 0)
        become_rung(c, in, log, parent);
    else if (*ret < 0)
        rc = err_errno(e, errno, "start %s", c->l->self);
    if (in >= 0)
        close(in);
    if (log >= 0)
        close(log);
    return rc;
}

/* Exit status as a shell has it; EXIT_HUNG: killed for want of time. */
static int wait_for(pid_t pid, int64_t deadline_ms)
{
    const int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int status = 0, ready = 1;
    while (fd >= 0 && (ready = poll(&p, 1, clock_left(deadline_ms))) < 0 && errno == EINTR)
        continue;
    const bool late = ready == 0;
    if (late)
        kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (fd >= 0)
        close(fd);
    return late ? EXIT_HUNG : WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* --- what came of it */

/* The last line of a log, which may be of any length; what of it is more than out holds is left out. */
static void last_line(const char *path, char *out, size_t cap)
{
    char tail[TAIL];
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t end = 0;
    if (fd >= 0 && fstat(fd, &st) == 0)
        end = pread(fd, tail, sizeof tail, st.st_size > TAIL ? st.st_size - TAIL : 0);
    if (fd >= 0)
        close(fd);
    while (end > 0 && tail[end - 1] == '\n')
        end--;
    ssize_t begin = end;
    while (begin > 0 && tail[begin - 1] != '\n')
        begin--;
    snprintf(out, cap, "%.*s", end > 0 ? (int)(end - begin) : INT_MAX, end > 0 ? tail + begin : "(it said nothing)");
}

/* Of the last step in metrics.jsonl; NaN: there is none. */
static double last_loss(const char *folder)
{
    char path[1100], line[16384];
    double loss = NAN;
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        cJSON *o = cJSON_Parse(line);
        const cJSON *value = o && cJSON_GetObjectItem(o, "lr") ? cJSON_GetObjectItem(o, "loss") : NULL;
        loss = cJSON_IsNumber(value) ? value->valuedouble : loss;
        cJSON_Delete(o);
    }
    if (f)
        fclose(f);
    return loss;
}

/* 0: as it should be. */
static int judge(struct climb *c, const struct rung *r, int status, struct err *why)
{
    char last[512];
    last_line(c->log, last, sizeof last);
    if (status == EXIT_HUNG)
        return err_set(why, -ETIMEDOUT, "it did not end in time; the last it said: %s", last);
    if (status)
        return err_set(why, -EIO, "exit status %d: %s", status, last);
    if (!r->trains)
        return 0;
    c->loss = last_loss(c->folder);
    if (r->first)
        c->plain = c->loss;
    if (!isfinite(c->loss))
        return err_set(why, -EIO, "its last loss is no number");
    if (fabs(c->loss - c->plain) > APART * fabs(c->plain))
        return err_set(why, -EIO, "its last loss is %.4f, that of the first rung with its network %.4f", c->loss,
                       c->plain);
    return 0;
}

/* "rung-3", "rung-3-checked": of rung n, in the folder of the ladder */
static void place_of(struct climb *c, int n, bool check)
{
    snprintf(c->folder, sizeof c->folder, "%s/rung-%d%s", c->l->out, n + 1, check ? "-checked" : "");
    snprintf(c->log, sizeof c->log, "%s/log", c->folder);
}

/* What an earlier climb left there would pass for this one's. */
static void clear_places(struct climb *c)
{
    char metrics[sizeof c->log + 32];
    for (int i = 0; i < 2 * RUNGS; i++) {
        place_of(c, i / 2, i % 2);
        snprintf(metrics, sizeof metrics, "%s/metrics.jsonl", c->folder);
        unlink(c->log);
        unlink(metrics);
    }
}

enum verdict { HOLDS, FAILS, NO_TIME };

static void tell(const struct climb *c, int n, enum verdict v, int64_t began_ms, const struct err *why)
{
    static const char *const words[] = {[HOLDS] = "ok", [FAILS] = "FAILED", [NO_TIME] = "cut off"};
    printf("%d %-22s %-7s %5.1f s", n + 1, rungs[n].name, words[v], (double)(clock_ms() - began_ms) / 1e3);
    if (v == HOLDS && rungs[n].trains)
        printf("  loss %.4f", c->loss);
    printf("%s%s\n", v == HOLDS ? "" : "  ", v == HOLDS ? "" : why->text);
    fflush(stdout);
}

/* A rung that the end of all time cuts off might have held. */
static int run_rung(struct climb *c, int n, bool check, enum verdict *ret, struct err *why, struct err *e)
{
    const struct gpu_ladder *l = c->l;
    const int64_t now = clock_ms();
    const bool in_full = l->rung_ms <= l->deadline_ms - now;
    pid_t pid = -1;
    place_of(c, n, check);
    command_of(c, &rungs[n], check);
    TRY(path_make_dirs(c->folder, e));
    TRY(start(c, &pid, e));
    const int status = wait_for(pid, in_full ? now + l->rung_ms : l->deadline_ms);
    const int rc = judge(c, &rungs[n], status, why);
    *ret = rc == 0 ? HOLDS : rc == -ETIMEDOUT && !in_full ? NO_TIME : FAILS;
    tell(c, n, *ret, now, why);
    return 0;
}

static void say_no_time(int n, struct err *why)
{
    err_set(why, -ETIME, "no time was left to begin it");
    printf("%d %-22s %s\n", n + 1, rungs[n].name, why->text);
}

static int write_file(const struct gpu_ladder *l, const char *name, const void *what, size_t bytes, struct err *e)
{
    char path[1100];
    snprintf(path, sizeof path, "%s/%s", l->out, name);
    FILE *f = fopen(path, "we");
    const bool written = f && fwrite(what, 1, bytes, f) == bytes;
    if ((f && fclose(f) != 0) || !written)
        return err_errno(e, errno, "write %s", path);
    return 0;
}

static int write_files(const struct gpu_ladder *l, struct err *e)
{
    static uint16_t tokens[512 + TOKENS_N];
    const int32_t header[] = {TOKENS_HEADER, 1, TOKENS_N};
    memcpy(tokens, header, sizeof header);
    for (uint32_t i = 0; i < TOKENS_N; i++)
        tokens[512 + i] = (uint16_t)(i * i / 7 % 500);
    TRY(path_make_dirs(l->out, e));
    TRY(write_file(l, "attention.net", attention_net, sizeof attention_net - 1, e));
    TRY(write_file(l, "tokens.net", tokens_net, sizeof tokens_net - 1, e));
    return write_file(l, "tokens.bin", tokens, sizeof tokens, e);
}

int gpu_ladder_climb(const struct gpu_ladder *l, struct gpu_ladder_end *ret, struct err *why, struct err *e)
{
    struct climb c = {.l = l};
    enum verdict v = HOLDS;
    int n = 0;
    clear_places(&c);
    TRY(write_files(l, e));
    for (; n < RUNGS && v == HOLDS; n++) {
        if (rungs[n].gpus > l->gpus) {
            printf("%d %-22s left out: %d GPU can be used here\n", n + 1, rungs[n].name, l->gpus);
        } else if (clock_ms() >= l->deadline_ms) {
            v = NO_TIME;
            say_no_time(n, why);
        } else {
            TRY(run_rung(&c, n, false, &v, why, e));
        }
    }
    *ret = (struct gpu_ladder_end){.rung = v == HOLDS ? NULL : rungs[n - 1].name, .no_time = v == NO_TIME};
    if (v == FAILS && rungs[n - 1].trains && clock_ms() < l->deadline_ms) {
        struct err again;
        printf("  once more, kernel by kernel:\n");
        TRY(run_rung(&c, n - 1, true, &v, &again, e));
    }
    return 0;
}

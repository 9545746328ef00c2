/* crun: the elastic launcher. The process the user started becomes the guardian; everything else happens in the agent,
 * its child.
 *
 * Reading order: guardian.h, agent.h (what happens when), effects.c and round.c (how), group.h, logmux.h. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "common/args/nearest.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/job/exitcode.h"
#include "launcher/agent/agent_loop.h"
#include "launcher/base/cgroup_path.h"
#include "launcher/base/oom.h"
#include "launcher/base/program.h"
#include "launcher/base/program_file.h"
#include "launcher/base/pty.h"
#include "launcher/base/whole_file.h"
#include "launcher/config/config.h"
#include "launcher/config/dryrun.h"
#include "launcher/guard/guardian.h"
#include "launcher/guard/tree.h"
#include "launcher/observe/gauges.h"
#include "launcher/output/process/output_process.h"
#include "launcher/remote/remote.h"
#include "launcher/remote/remote_agent.h"
#include "launcher/remote/remote_wire.h"
#include "launcher/tools/chaos/chaos.h"
#include "launcher/tools/doctor/doctor.h"
#include "launcher/tools/doctor/doctor_agent.h"
#include "launcher/tools/explain/explain.h"
#include "launcher/tools/stacks/commands.h"
#include "launcher/tools/status/admin.h"
#include "launcher/tools/status/status.h"
#include "launcher/tools/topo/topo.h"

static_assert(sizeof(struct gauges_page) <= GUARDIAN_GAUGES_PAGE, "it fits");

enum { FILES_ONE_WORKER = 33, FILES_A_WORKER = 6, FILES_A_HELD_ONE = 3 }; /* descriptors that a job on one node needs */
enum { STACK_MIN = 128 * 1024 };                                          /* bytes; 80 KiB serve the usual ways */

/* Their options are completed behind their names. */
static const struct arg_program *const commands[] = {&admin_program,
                                                     &chaos_program,
                                                     &doctor_program,
                                                     &drain_program,
                                                     &explain_program,
                                                     &logs_program,
                                                     &stacks_program,
                                                     &status_program,
                                                     &stop_program,
                                                     &topo_program,
                                                     NULL};
static int (*const mains[])(int argc, char **argv) = {admin_main, chaos_main,  doctor_main, drain_main, explain_main,
                                                      logs_main,  stacks_main, status_main, stop_main,  topo_main};
static_assert(sizeof commands / sizeof *commands == sizeof mains / sizeof *mains + 1, "one of each, and a NULL");

static const char *command_name(size_t i)
{
    return commands[i]->name + strlen("crun ");
}

static int complain(int code, const struct err *e)
{
    char name[ARG_CALLED_MAX];
    args_called(&config_program, name);
    fprintf(stderr, "%s: %s\n", code == EXIT_USAGE_ERROR ? name : "crun", e->text);
    if (code == EXIT_USAGE_ERROR)
        fprintf(stderr, "Try '%s --help'.\n", name);
    return code;
}

/* Report if the output of --help and the like could not be written (a full disk). A reader that is gone (`crun
 * --help | head`) is not an error. */
static int check_printed(void)
{
    struct err e;
    if ((fflush(stdout) == 0 && !ferror(stdout)) || errno == EPIPE)
        return EXIT_OK;
    err_errno(&e, errno, "the output cannot be written");
    return complain(EXIT_CANT_CREATE, &e);
}

/* Check the limit of open files: libuv aborts the process if it cannot open its loop's descriptors, so refuse with a
 * sentence before. */
static int check_open_files(const struct config *c, struct err *e)
{
    struct rlimit r;
    const rlim_t workers = config_starts_agents(c) ? 1 : (rlim_t)c->nproc;
    const rlim_t held = config_holds(c) ? workers * FILES_A_HELD_ONE : 0;
    const rlim_t need = FILES_ONE_WORKER + (workers - 1) * FILES_A_WORKER + held;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < need)
        return err_set(e, -EMFILE,
                       "at most %llu files may be open here (ulimit -n, RLIMIT_NOFILE): %llu worker%s need%s %llu",
                       (unsigned long long)r.rlim_cur, (unsigned long long)workers, workers == 1 ? "" : "s",
                       workers == 1 ? "s" : "", (unsigned long long)need);
    return 0;
}

static int refuse_filter(const char *call, struct err *e)
{
    return err_set(
        e, -EPERM,
        "%s(2) is refused here, as by the seccomp filter of an old container runtime: expected Docker 20.10.10 "
        "or newer, or a filter that allows it (docker run --security-opt seccomp=FILE)",
        call);
}

/* Check for pidfds, by which workers, guardian and agent are watched, and for clone3(2), which starts threads:
 * without arguments it fails anyway, but with another errno. */
static int check_kernel(struct err *e)
{
    struct utsname u;
    if (syscall(SYS_clone3, NULL, 0) < 0 && errno == EPERM)
        return refuse_filter("clone3", e);
    const int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (fd >= 0)
        close(fd);
    else if (errno == EPERM)
        return refuse_filter("pidfd_open", e);
    if (fd >= 0 || errno != ENOSYS || uname(&u) < 0)
        return 0;
    return err_set(e, -ENOSYS, "this kernel (Linux %s) has no pidfd_open(2): expected Linux 5.3 or newer", u.release);
}

/* Check whether --failure-file can be written at the job's end. Only group rank 0's node writes it, and it is not
 * known yet which node that will be, so with several nodes this is only a warning. */
static int check_failure_file(const struct config *c, struct err *e)
{
    if (!c->failure_file)
        return 0;
    file_at(c->failure_file);
    const int rc = whole_file_check(c->failure_file);
    file_at(NULL);
    if (rc == 0)
        return 0;
    err_set(e, ERR_OUTPUT, "cannot write the failure report %s (--failure-file): %s", c->failure_file,
            rc == -EISDIR ? "it is a folder, expected the name of a file" : strerror(-rc));
    if (c->nnodes.max == 1)
        return ERR_OUTPUT;
    fprintf(stderr, "crun: %s\n", e->text);
    return 0;
}

/* Container runtimes set memory.oom.group: when memory runs out, it ends crun and all workers instead of one worker,
 * without a report. Warn. */
static void warn_oom_group(const struct cgroup_tables *t)
{
    char folder[1024];
    if (oom_group_is_set(t, folder, sizeof folder))
        fprintf(stderr,
                "crun: memory.oom.group is set in %s: a worker that is killed for want of memory takes crun along, "
                "without a report and without a restart\n",
                folder);
}

/* Refuse warm spares with arguments that contain the rank: a spare gets its arguments before its rank. */
static int check_spares(const struct config *c, const struct program *p, struct err *e)
{
    bool differ = false;
    if (config_spares(c) > 0)
        TRY(program_args_differ(p, &differ, e));
    if (!differ)
        return 0;
    return err_set(
        e, ERR_USAGE,
        "--warm-spares: a spare has no rank when it starts: expected a program that reads RANK and LOCAL_RANK, "
        "without ${rank} or ${local_rank} in its arguments%s",
        c->how.use_env ? "" : " (--use-env leaves out --local-rank)");
}

/* program_find() failed with e. If it did not find the typed word itself, the user may have meant a command: add a
 * hint. */
static void ask_for_command(const char *typed, struct err *e)
{
    char *found = NULL;
    struct err why;
    struct nearest near;
    char name[ARG_CALLED_MAX];
    const bool is_missing = program_file_find(typed, &found, &why) == -ENOENT && strcmp(why.text, e->text) == 0;
    free(found);
    nearest_begin(&near, typed, strlen(typed));
    for (size_t i = 0; is_missing && commands[i]; i++)
        nearest_try(&near, command_name(i));
    const size_t said = strlen(e->text);
    if (near.word)
        snprintf(e->text + said, sizeof e->text - said, ", did you mean '%s %s'?", args_called(&config_program, name),
                 near.word);
}

/* Is the word like "10.0.0.1:29500"? A misused $(hostname -I) with a port appended leaves such words. */
static bool looks_like_endpoint(const char *word)
{
    const char *colon = strrchr(word, ':');
    return colon && colon > word && colon[1] && strspn(colon + 1, "0123456789") == strlen(colon + 1) &&
           !strchr(word, '/');
}

/* 0: the program was found, or config->cannot says why not, which the other nodes must learn. Else an exit code. */
static int find_program(struct program *ret, struct config *config, const struct arg_result *args, char **argv)
{
    struct err e = {0};
    char **typed = argv + args->first_operand;
    struct config_cannot *cannot = &config->cannot;
    const int rc = cannot->code ? 0 : program_find(ret, &config->how, typed, &e);
    if (rc == -ENOENT && args->first_operand == 1 && !strpbrk(argv[1], "./"))
        ask_for_command(argv[1], &e);
    if (rc == -ENOENT && looks_like_endpoint(*typed)) {
        fprintf(stderr, "crun: '%s' looks like a second address, and stands where a program is expected\n", *typed);
        return EXIT_NOT_FOUND;
    }
    if (rc < 0) {
        cannot->code = rc == -EACCES ? EXIT_CANNOT_EXEC : EXIT_NOT_FOUND;
        snprintf(cannot->text, sizeof cannot->text, "%.319s", e.text);
    }
    if (cannot->code == 0)
        return 0;
    if (!config_is_awaited(config))
        return complain(cannot->code, &e);
    fprintf(stderr, "crun: %s; this node tells the others, %d s at most\n", cannot->text, AGENT_TELL_MS / 1000);
    return program_stand_in(ret, typed, &e) < 0 ? complain(EXIT_UNAVAILABLE, &e) : 0;
}

static int failure_code(int rc)
{
    return rc == ERR_USAGE ? EXIT_USAGE_ERROR : rc == ERR_OUTPUT ? EXIT_CANT_CREATE : EXIT_UNAVAILABLE;
}

static int run_elsewhere(const struct config *config, const struct arg_result *args, const struct guardian_link *link,
                         int argc, char **argv)
{
    struct err e = {0};
    int code = EXIT_INTERNAL;
    const int rc = config->dry_run ? remote_print_plan(config, argc, argv, args->first_operand, stdout, &e)
                                   : remote_run(config, link, argc, argv, args->first_operand, &code, &e);
    if (rc < 0)
        return complain(failure_code(rc), &e);
    return config->dry_run ? check_printed() : code;
}

/* Warn if crun was called by path and PATH has another program called crun first, which srun, ssh and scripts would
 * find. */
static void warn_other_crun(const struct config *c, const char *self)
{
    char path[1024];
    const char *slash = strrchr(self, '/');
    if (slash && strcmp(slash, "/crun") == 0 && c->control_fd < 0 && program_file_other_crun(path, sizeof path))
        fprintf(stderr, "crun: the word crun means another program here, %s: crun-launcher is this one\n", path);
}

static int agent_main(const struct guardian_link *link, int argc, char **argv)
{
    struct config config;
    struct arg_result args;
    struct program program;
    struct cgroup_tables cgroups;
    struct err e = {0};
    char name[ARG_CALLED_MAX];
    int code = EXIT_INTERNAL;

    if (config_read(&config, &args, argc, argv, &e) < 0)
        return complain(EXIT_USAGE_ERROR, &e);
    struct arg_program whole = config_program;
    whole.commands = commands;
    if (args_answer(&whole, "crun " CRUN_VERSION, &config, &args, stdout))
        return check_printed();
    if (args.first_operand >= argc || !*argv[args.first_operand]) {
        err_set(&e, ERR_USAGE, "no program to run: expected %s %s", args_called(&config_program, name), whole.usage);
        return complain(EXIT_USAGE_ERROR, &e);
    }
    log_init((enum log_level)config.log_level, "crun");
    if (check_open_files(&config, &e) < 0 || check_kernel(&e) < 0)
        return complain(EXIT_UNAVAILABLE, &e);
    warn_other_crun(&config, argv[0]);
    if (!config.dry_run)
        guardian_start_console(link, config.stdin_rank >= 0);
    if (config_starts_agents(&config))
        return run_elsewhere(&config, &args, link, argc, argv);
    if (!config.dry_run)
        guardian_start_output(link); /* it starts up while this process goes on */
    if ((code = find_program(&program, &config, &args, argv)))
        return code;
    int rc = 0;
    if ((rc = check_spares(&config, &program, &e)) < 0) {
        program_free(&program);
        return complain(failure_code(rc), &e);
    }
    config_print_unused(&config, &args, stderr);
    if (program.python_on_path)
        fprintf(stderr, "crun: python3 on PATH is %s, but %s names %s, which is taken (PYTHON_EXEC names another)\n",
                program.python_on_path, program.python_from, program.path);
    if (!tree_has_proc())
        fputs("crun: there is no /proc: what workers leave behind is found slowly, and SIGUSR1 and SIGUSR2 do not "
              "reach workers\n",
              stderr);
    cgroup_tables_read(&cgroups, "/proc/self");
    warn_oom_group(&cgroups);
    if (!config.inherit_fds)
        file_keep_fds();
    if (config.dry_run) {
        rc = dryrun_print(&config, &program, &cgroups, stdout, &e);
        code = rc == 0 ? check_printed() : EXIT_INTERNAL;
    } else {
        rc = check_failure_file(&config, &e);
        rc = rc < 0 ? rc : agent_run(&config, &program, link, &cgroups, &code, &e);
    }
    if (rc < 0)
        code = complain(failure_code(rc), &e);
    cgroup_tables_free(&cgroups);
    program_free(&program);
    return code;
}

/* Check the stack's limit before a large frame is needed. 0: it is large enough. */
static int check_stack(void)
{
    struct rlimit r;
    struct err e;
    if (getrlimit(RLIMIT_STACK, &r) < 0 || r.rlim_cur >= STACK_MIN)
        return 0;
    err_set(&e, -ENOMEM, "the stack is limited to %llu KiB here (ulimit -s, RLIMIT_STACK): expected at least %d",
            (unsigned long long)r.rlim_cur / 1024, STACK_MIN / 1024);
    return complain(EXIT_UNAVAILABLE, &e);
}

int main(int argc, char **argv)
{
    static const struct guardian_programs programs = {
        .agent = agent_main, .output = output_process_run, .gauges = gauges_process};
    int code;
    args_set_called(argc > 0 ? argv[0] : "crun");
    for (size_t i = 0; argc > 1 && commands[i]; i++) /* a program with the name of a command is started as ./status */
        if (strcmp(argv[1], command_name(i)) == 0)
            return mains[i](argc - 1, argv + 1);
    if (argc == 2 && strcmp(argv[1], DOCTOR_COMMAND) == 0) /* by crun doctor */
        return doctor_agent_main();
    if (argc == 3 && strcmp(argv[1], PTY_TYPIST_COMMAND) == 0) /* by an agent */
        return pty_type(argv[2]);
    if ((code = check_stack()))
        return code;
    if (argc == 2 && strcmp(argv[1], REMOTE_COMMAND) == 0) /* by crun -H on another host */
        return remote_agent_main(&programs);
    return guardian_run(&programs, argc, argv);
}

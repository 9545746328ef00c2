/* Finding what the user wants to run: PROGRAM and its arguments, as exec(2) takes them.
 *
 * The room base/ holds what several rooms of the launcher need and what knows of none of them: programs and how they
 * end (program.h, ending.h), the device of a worker that sees only one (virtual_rank.h), descriptors watched by a loop
 * (watch.h), words for a shell (shell_word.h), where this process stands in a cgroup tree (cgroup_path.h). None of it
 * keeps state of its own. */
#ifndef CRUN_LAUNCHER_PROGRAM_H
#define CRUN_LAUNCHER_PROGRAM_H

#include <stdbool.h>

struct err;

/* As the options of the same names say. run_path counts more than the others. */
struct program_how {
    bool module, no_python, run_path;
    bool python;       /* PROGRAM is a script, whatever its name */
    bool use_env;      /* false: its first argument is --local-rank=N */
    bool as_templates; /* arguments are what Python's string.Template takes them for */
};

struct python_shebang;

struct program {
    char *path;              /* to exec */
    const char *python_from; /* who named this Python (python.h); NULL: it is none */
    char *python_on_path;    /* another Python, which PATH has; NULL: none */
    char *name;              /* as the user named it: "./train.py", "-m package.module" */
    char **argv; /* NULL-terminated; strings borrowed from the command line, except argv[0] of a script's interpreter */
    bool macros; /* some argument differs between workers: program_args() */
    bool as_templates;
    char *script; /* in argv, as the words of its line "#!" are; NULL: no such line */
    struct python_shebang *shebang;
};

/* args: PROGRAM and its arguments, NULL-terminated; program_file.h says where a name is looked for, python.h which
 * Python runs NAME.py, a folder with __main__.py, a zip file, and a text that cannot be executed. A script whose first
 * line names a Python is run by that one. All of them get -u. -ENOENT: not found; -EACCES: found, but not
 * executable. */
int program_find(struct program *ret, const struct program_how *how, char **args, struct err *e);

/* One that is named, and never started. -ENOMEM. */
int program_stand_in(struct program *ret, char **args, struct err *e);

/* Arguments of one worker: ${local_rank} and ${rank} are its numbers, $${rank} is ${rank}. rank NULL: not known yet.
 * *ret: one allocation, freed with free(). -ENOMEM. */
int program_args(const struct program *p, const char *rank, int local_rank, char ***ret, struct err *e);
/* Has one worker other arguments than another one? -ENOMEM. */
int program_args_differ(const struct program *p, bool *ret, struct err *e);
void program_free(struct program *p);

#endif

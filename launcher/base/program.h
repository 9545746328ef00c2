/* Finds what the user wants to run: PROGRAM and its arguments, in the form for exec(2).
 *
 * The room base/ holds what several rooms of the launcher need and what knows of none of them: programs and how they
 * end (program.h, ending.h), the device of a worker that sees only one (virtual_rank.h), descriptors watched by a
 * loop (watch.h), quoting for a shell (shell_word.h), where this process is in a cgroup tree (cgroup_path.h). None
 * of these has state of its own. */
#ifndef CRUN_LAUNCHER_PROGRAM_H
#define CRUN_LAUNCHER_PROGRAM_H

#include <stdbool.h>

struct err;

/* The options of the same names. run_path overrides the others. */
struct program_how {
    bool module, no_python, run_path;
    bool python;       /* PROGRAM is a script, whatever its name */
    bool use_env;      /* false: its first argument is --local-rank=N */
    bool as_templates; /* arguments are expanded as by Python's string.Template */
};

struct python_shebang;

struct program {
    char *path;              /* to exec */
    const char *python_from; /* where this Python was found (python.h); NULL: it is not a Python */
    char *python_on_path;    /* another Python, which PATH has; NULL: none */
    char *name;              /* what the user typed: "./train.py", "-m package.module" */
    /* NULL-terminated; strings are borrowed from the command line, except argv[0] if an interpreter runs the script */
    char **argv;
    bool macros; /* some argument differs between workers: program_args() */
    bool as_templates;
    char *script; /* owned string in argv, as are the words of the script's "#!" line; NULL: no such line */
    struct python_shebang *shebang;
};

/* args: PROGRAM and its arguments, NULL-terminated; program_file.h says where names are searched. python.h says
 * which Python runs NAME.py, a folder with __main__.py, a zip file, and a text that is not executable. A script
 * whose first line names a Python is run by that one. Every Python gets -u. -ENOENT: not found; -EACCES: found, but
 * not executable. */
int program_find(struct program *ret, const struct program_how *how, char **args, struct err *e);

/* A program that is named in messages, but never started. -ENOMEM. */
int program_stand_in(struct program *ret, char **args, struct err *e);

/* The arguments of one worker: ${local_rank} and ${rank} become its numbers, $${rank} becomes ${rank}. rank NULL:
 * not known yet. *ret: one allocation, freed with free(). -ENOMEM. */
int program_args(const struct program *p, const char *rank, int local_rank, char ***ret, struct err *e);
/* Do the workers have different arguments? -ENOMEM. */
int program_args_differ(const struct program *p, bool *ret, struct err *e);
void program_free(struct program *p);

#endif

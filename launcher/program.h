/* Finding what the user wants to run. */
#ifndef CRUN_LAUNCHER_PROGRAM_H
#define CRUN_LAUNCHER_PROGRAM_H

struct err;

struct program {
    char *path;  /* to exec */
    char **argv; /* NULL-terminated; strings borrowed from the command line, except argv[0] of a script's interpreter */
};

/* args: PROGRAM and its arguments, NULL-terminated. A name with a slash is that file; another is looked for on PATH, beside crun and in ../worker of
 * crun's folder. NAME.py is run by $PYTHON_EXEC or python3 with -u. -ENOENT: not found; -EACCES: found, but not executable. */
int program_find(struct program *ret, char **args, struct err *e);
void program_free(struct program *p);

#endif

/* Python: which interpreter runs a script, and what is a script. As torchrun has it, which is itself a script of the
 * environment that it was installed into. */
#ifndef CRUN_LAUNCHER_PYTHON_H
#define CRUN_LAUNCHER_PYTHON_H

#include <stdbool.h>

struct err;

struct python {
    char *path;       /* freed by python_free() */
    const char *from; /* where it was found: "PYTHON_EXEC", "beside crun", "VIRTUAL_ENV", "CONDA_PREFIX", "PATH" */
    char *on_path;    /* from VIRTUAL_ENV or CONDA_PREFIX, and PATH has another one; NULL: it has not. Freed likewise */
};

/* $PYTHON_EXEC; the one beside crun, where crun's folder is that of an environment (../pyvenv.cfg, ../conda-meta); that
 * of $VIRTUAL_ENV or $CONDA_PREFIX, the one first whose python3 is found on PATH, for a variable may be left over from
 * another shell; python3 or python on PATH. -ENOENT, -EACCES. */
int python_find(struct python *ret, struct err *e);
void python_free(struct python *p);

enum python_code {
    PYTHON_NONE,    /* another program, or nothing that can be read */
    PYTHON_CODE,    /* a text without a line "#!", a zip file, a folder with __main__.py: Python runs it by its name */
    PYTHON_SHEBANG, /* a text whose first line names a Python */
};
enum python_code python_code_of(const char *path);

/* NAME.py */
bool python_is_named(const char *name);

/* What a line "#!" asks for: an interpreter by its path, or (env) the environment's. Words of at most 3 arguments. */
struct python_shebang {
    char line[256];
    char *interpreter; /* NULL: the environment's */
    char *args[4];     /* NULL-terminated */
};
/* False: the first line of this file names no Python. */
bool python_read_shebang(const char *path, struct python_shebang *ret);

#endif

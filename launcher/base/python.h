/* Which Python interpreter runs a script, and what counts as a script. Follows torchrun, which is itself a script of
 * the environment in which it is installed. */
#ifndef CRUN_LAUNCHER_PYTHON_H
#define CRUN_LAUNCHER_PYTHON_H

#include <stdbool.h>

struct err;

struct python {
    char *path;       /* freed by python_free() */
    const char *from; /* where it was found: "PYTHON_EXEC", "beside crun", "VIRTUAL_ENV", "CONDA_PREFIX", "PATH" */
    /* the other Python on PATH, if `from` is VIRTUAL_ENV or CONDA_PREFIX; NULL: PATH has the same. Freed like path */
    char *on_path;
};

/* In this order: $PYTHON_EXEC; the Python beside crun, if crun's folder is that of an environment (../pyvenv.cfg,
 * ../conda-meta); that of $VIRTUAL_ENV or $CONDA_PREFIX, first the one whose python3 is also on PATH, because a
 * variable may be left over from another shell; python3 or python on PATH. -ENOENT, -EACCES. */
int python_find(struct python *ret, struct err *e);
void python_free(struct python *p);

enum python_code {
    PYTHON_NONE,    /* another program, or unreadable */
    PYTHON_CODE,    /* a text without a "#!" line, a zip file, or a folder with __main__.py: Python runs it by name */
    PYTHON_SHEBANG, /* a text whose first line names a Python */
};
enum python_code python_code_of(const char *path);

/* NAME.py */
bool python_is_named(const char *name);

/* What a "#!" line asks for: an interpreter by path, or (env) one of the environment. At most 3 arguments. */
struct python_shebang {
    char line[256];
    char *interpreter; /* NULL: the environment's */
    char *args[4];     /* NULL-terminated */
};
/* Parse the first line of this file. False: it does not name a Python. */
bool python_read_shebang(const char *path, struct python_shebang *ret);

#endif

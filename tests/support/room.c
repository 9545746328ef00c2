/* main() of a room's tests: ROOM MODULE runs the tests of the file that is named, by its path or as MODULE of
 * test_MODULE.c. Another argument goes to the module; to one that takes none it is a pattern of the cases to run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#undef main

static struct room_program *programs;

void room_add(struct room_program *p)
{
    p->next = programs;
    programs = p;
}

/* Without "test_" and ".c"; *ret_len: its length. */
static const char *module_of(const char *file, size_t *ret_len)
{
    const char *slash = strrchr(file, '/'), *name = slash ? slash + 1 : file;
    name += strncmp(name, "test_", 5) == 0 ? 5 : 0;
    *ret_len = strcspn(name, ".");
    return name;
}

/* The compiler was given a path from the build folder, or a whole one. */
static bool is_path(const char *asked, const char *file)
{
    while (strncmp(file, "../", 3) == 0)
        file += 3;
    const size_t a = strlen(asked), f = strlen(file);
    return a >= f && strcmp(asked + a - f, file) == 0 && (a == f || asked[a - f - 1] == '/');
}

static bool is_asked(const char *asked, const char *file)
{
    size_t len;
    const char *module = module_of(file, &len);
    return is_path(asked, file) || (strlen(asked) == len && strncmp(asked, module, len) == 0);
}

int main(int argc, char **argv)
{
    for (const struct room_program *p = programs; argc > 1 && p; p = p->next) {
        if (!is_asked(argv[1], p->file))
            continue;
        if (p->main_of_words)
            return p->main_of_words(argc - 1, argv + 1);
        if (argc > 2)
            cmocka_set_test_filter(argv[2]);
        return p->main_of_none();
    }
    fprintf(stderr, "usage: %s MODULE [CASES]; MODULE is one of:\n", argv[0]);
    for (const struct room_program *p = programs; p; p = p->next) {
        size_t len;
        const char *module = module_of(p->file, &len);
        fprintf(stderr, "  %.*s\n", (int)len, module);
    }
    return 2;
}

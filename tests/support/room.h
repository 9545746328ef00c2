/* The test programs of a room in one. The compiler includes this header before each of their files (tests/meson.build),
 * and the macro puts the file's main() on a list: room.c calls the one that is asked for. A file stays a program of its
 * own to its reader, and its statics stay its own. What it defines without `static` is seen by the others: a file that
 * stands in for a function of libc or of the tree has to be a program by itself. */
#ifndef CRUN_TESTS_SUPPORT_ROOM_H
#define CRUN_TESTS_SUPPORT_ROOM_H

#include <stddef.h>

struct room_program {
    const char *file;          /* __FILE__ */
    int (*main_of_none)(void); /* its main(), which takes no words or some: one of these two, the other is NULL */
    int (*main_of_words)(int argc, char **argv);
    struct room_program *next;
};

void room_add(struct room_program *p);

/* "int main(...)" becomes a prototype, which nobody needs, and a static function that adds itself before the program's
 * main(). */
// clang-format off
#define ROOM_IF(type, f) _Generic(f, type: f, default: NULL)
// clang-format on
#define main(...)                                                                                                      \
    room_prototype(void);                                                                                              \
    static int room_main(__VA_ARGS__);                                                                                 \
    static void room_enter(void) __attribute__((constructor));                                                         \
    static void room_enter(void)                                                                                       \
    {                                                                                                                  \
        static struct room_program room_self = {.file = __FILE__};                                                     \
        room_self.main_of_none = ROOM_IF(int (*)(void), room_main);                                                    \
        room_self.main_of_words = ROOM_IF(int (*)(int, char **), room_main);                                           \
        room_add(&room_self);                                                                                          \
    }                                                                                                                  \
    static int room_main(__VA_ARGS__)

#endif

/* A line for people from where nobody may be held up: said if the console takes it at once, else not at all. */
#ifndef CRUN_LAUNCHER_CONSOLE_H
#define CRUN_LAUNCHER_CONSOLE_H

/* One line, newline included, to stderr, which is no file (console_file.h). SIGPIPE must be ignored. */
void console_try(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif

/* A line for people from where nothing may block: dropped if the console does not take it at once. */
#ifndef CRUN_LAUNCHER_CONSOLE_H
#define CRUN_LAUNCHER_CONSOLE_H

/* One line, newline included, to stderr, which is no file (console_file.h). SIGPIPE must be ignored. */
void console_try(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif

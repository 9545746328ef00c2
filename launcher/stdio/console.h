/* Prints a line for people from code that must not block: the line is dropped if the console does not accept it at
 * once. */
#ifndef CRUN_LAUNCHER_CONSOLE_H
#define CRUN_LAUNCHER_CONSOLE_H

/* Print one line, newline included, to stderr, which is not a file (console_file.h). SIGPIPE must be ignored. */
void console_try(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif

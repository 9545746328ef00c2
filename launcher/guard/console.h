/* A line for people from where nobody may be held up: said if the console takes it at once, else not at all. */
#ifndef CRUN_LAUNCHER_CONSOLE_H
#define CRUN_LAUNCHER_CONSOLE_H

/* One line, newline included, to stderr. SIGPIPE must be ignored. A file is written to by a process of its own, which a
 * disk that hangs may keep. */
void console_try(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* What stderr is, for this process and those that it forks: once, as to look at a file, too, waits for its disk. */
void console_look(void);

#endif

/* A device's properties from a file, for planning without it. */
#ifndef CRUN_TESTS_CUDA_PROPERTIES_H
#define CRUN_TESTS_CUDA_PROPERTIES_H

/* The file's text, malloc'ed; ends the program with a message where it cannot be read. */
char *properties_read(const char *path);

#endif

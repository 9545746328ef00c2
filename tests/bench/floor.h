/* A bare libuv server: what the system alone takes for the same bytes. */
#ifndef CRUN_TESTS_BENCH_FLOOR_H
#define CRUN_TESTS_BENCH_FLOOR_H

#include <stddef.h>

#define FLOOR_READS 2 /* of each client that are answered with a number of bytes of their own */
#define FLOOR_BYTES 65536

struct floor {
    size_t answers[FLOOR_READS]; /* bytes of the answer to a client's first read, and to its second; 0: what was read */
    size_t clients, news;        /* once so many have their second answer, so many bytes for each of them; 0: no news */
};

/* Prints its port and serves on 127.0.0.1 until it is killed; a client's later reads are given back. */
int floor_serve(const struct floor *f);

#endif

/* Options of forms of their own: arg_spec.parse and arg_spec.print of the table in config.c. */
#ifndef CRUN_WORKER_CONFIG_PARSE_H
#define CRUN_WORKER_CONFIG_PARSE_H

#include <stddef.h>

struct err;

int config_parse_range(const char *text, void *field, struct err *e);      /* MIN,MAX: struct range */
int config_parse_drill(const char *text, void *field, struct err *e);      /* WHAT@STEP:RANK: struct drill */
int config_parse_window(const char *text, void *field, struct err *e);     /* FIRST,COUNT: struct window */
int config_parse_milestones(const char *text, void *field, struct err *e); /* A,B,...: struct milestones */
int config_parse_shuffle(const char *text, void *field, struct err *e);    /* on, off, auto, shards:N: struct shuffle */
int config_parse_mean(const char *text, void *field, struct err *e);       /* M[,M,M]: struct channels */
int config_parse_threads(const char *text, void *field, struct err *e);    /* N, or OpenMP's N,N,...: int64_t */
int config_parse_size(const char *text, void *field, struct err *e);       /* 1.5G, 800M, 64K, N: int64_t bytes */
int config_parse_std(const char *text, void *field, struct err *e);

void config_print_range(const void *field, char *out, size_t cap);
void config_print_drill(const void *field, char *out, size_t cap); /* "": none */
void config_print_window(const void *field, char *out, size_t cap);
void config_print_shuffle(const void *field, char *out, size_t cap);
void config_print_threads(const void *field, char *out, size_t cap);
void config_print_milestones(const void *field, char *out, size_t cap);
void config_print_channels(const void *field, char *out, size_t cap);
void config_print_size(const void *field, char *out, size_t cap); /* in the largest unit that divides it */

#endif

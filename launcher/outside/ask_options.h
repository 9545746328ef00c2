/* Options of commands that ask a rendezvous: its address, and how to connect. */
#ifndef CRUN_LAUNCHER_ASK_OPTIONS_H
#define CRUN_LAUNCHER_ASK_OPTIONS_H

#include <stdbool.h>

#include "common/args/args.h"
#include "launcher/rendezvous/rdzv_ask.h"

struct ask_options {
    const char *endpoint, *token_file, *ca;
    double timeout_s;
    bool tls;
};

/* For a struct whose first member is a struct ask_options. where: help text of --rdzv-endpoint. */
#define ASK_OPTIONS(where)                                                                                             \
    {.name = "rdzv-endpoint",                                                                                          \
     .type = ARG_STRING,                                                                                               \
     .at = offsetof(struct ask_options, endpoint),                                                                     \
     .def = "127.0.0.1",                                                                                               \
     .metavar = "WHERE",                                                                                               \
     .env = "CRUN_RDZV_ENDPOINT,PET_RDZV_ENDPOINT",                                                                    \
     .help = where},                                                                                                   \
        {.name = "token-file",                                                                                         \
         .type = ARG_STRING,                                                                                           \
         .at = offsetof(struct ask_options, token_file),                                                               \
         .metavar = "FILE",                                                                                            \
         .env = "CRUN_TOKEN_FILE",                                                                                     \
         .help = "secret to authenticate with where it is asked for; ~/.config/crun/token, made on first use, if not " \
                 "given"},                                                                                             \
        {.name = "rdzv-tls",                                                                                           \
         .type = ARG_FLAG,                                                                                             \
         .at = offsetof(struct ask_options, tls),                                                                      \
         .env = "CRUN_RDZV_TLS",                                                                                       \
         .help = "speak TLS with the rendezvousd"},                                                                    \
        {.name = "rdzv-ca",                                                                                            \
         .type = ARG_STRING,                                                                                           \
         .at = offsetof(struct ask_options, ca),                                                                       \
         .metavar = "FILE",                                                                                            \
         .env = "CRUN_RDZV_CA",                                                                                        \
         .help = "certificates of those who may vouch for the rendezvousd, PEM; implies --rdzv-tls"},                  \
    {                                                                                                                  \
        .name = "timeout", .type = ARG_SECONDS, .at = offsetof(struct ask_options, timeout_s), .def = "10s",           \
        .min = 0.1, .max = 3600, .help = "the longest to wait for an answer"                                           \
    }

static inline void ask_options_apply(const struct ask_options *o, struct rdzv_ask *ret)
{
    ret->timeout_ms = (int64_t)(o->timeout_s * 1000);
    ret->token_file = o->token_file;
    ret->tls = o->tls;
    ret->ca = o->ca;
}

#endif

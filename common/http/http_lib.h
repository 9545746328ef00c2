/* libmicrohttpd, opened on first use: it brings a TLS library of its own, and only a process with --http-port needs
 * it. */
#ifndef CRUN_COMMON_HTTP_LIB_H
#define CRUN_COMMON_HTTP_LIB_H

#include <microhttpd.h>

struct err;

#define HTTP_LIB_FUNCTIONS(X)                                                                                          \
    X(MHD_start_daemon)                                                                                                \
    X(MHD_stop_daemon)                                                                                                 \
    X(MHD_run)                                                                                                         \
    X(MHD_get_timeout)                                                                                                 \
    X(MHD_get_daemon_info)                                                                                             \
    X(MHD_get_connection_info)                                                                                         \
    X(MHD_lookup_connection_value)                                                                                     \
    X(MHD_create_response_from_buffer)                                                                                 \
    X(MHD_add_response_header)                                                                                         \
    X(MHD_queue_response)                                                                                              \
    X(MHD_destroy_response)

struct http_lib {
#define X(name) __typeof__(name) *name;
    HTTP_LIB_FUNCTIONS(X)
#undef X
};

/* NULL, with one sentence, if it is not installed. Stays for the life of the process. */
const struct http_lib *http_lib(struct err *e);

#endif

/* Loads libmicrohttpd (http_lib.h). */
#include "common/http/http_lib.h"
#include "common/base/shared_lib.h"

static const struct lib_symbol symbols[] = {
#define X(name) {#name, offsetof(struct http_lib, name)},
    HTTP_LIB_FUNCTIONS(X)
#undef X
};

const struct http_lib *http_lib(struct err *e)
{
    static struct http_lib functions;
    static struct shared_lib lib =
        SHARED_LIB("libmicrohttpd.so.12", " (Debian 12: libmicrohttpd12; Debian 13, Ubuntu 24.04: libmicrohttpd12t64)",
                   "libmicrohttpd 0.9 or later", symbols, &functions);
    return shared_lib_open(&lib, e);
}

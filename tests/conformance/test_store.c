/* test_store mem|prefix|redis|rendezvousd|tcp1|tcp2 [PATH]: the suite over one backend; tcp: PyTorch's protocol in its
 * generations. test_store url URL: over a server that runs already. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/store/store.h"
#include "tests/conformance/server_process.h"
#include "tests/conformance/store_suite.h"

static struct server_process server;
static char **server_argv;
static char url[128] = "mem://suite";
static struct store *keeper; /* keeps mem://suite alive between cases */

static struct store *open_url(void)
{
    struct err e;
    struct store *s = NULL;
    if (store_open(&s, url, &(struct store_options){.connect_timeout_ms = 5000}, &e) < 0)
        fprintf(stderr, "%s\n", e.text);
    return s;
}

/* A view closes after what lies under it was used for the last time, so the base goes with it. */
struct based {
    struct store *view, *base;
} based[64];

static struct store *open_view(void)
{
    struct err e;
    struct based *b = based;
    while (b->view)
        b++;
    b->base = open_url();
    if (b->base && store_open_prefix(&b->view, b->base, "round-1/", &e) < 0)
        fprintf(stderr, "%s\n", e.text);
    return b->view;
}

static void close_view(struct store *s)
{
    struct based *b = based;
    while (b->view != s)
        b++;
    store_close(b->view);
    store_close(b->base);
    *b = (struct based){0};
}

static bool restart(void)
{
    server_process_stop(&server);
    return server_process_start(&server, server_argv);
}

static int run_with_server(const char *form, char *const argv[]) /* form: of the URL, with the port */
{
    server_argv = (char **)argv;
    if (!server_process_start(&server, argv)) {
        printf("1..0 # SKIP cannot start %s\n", argv[0]);
        return 0;
    }
    const int port_at = (int)(strstr(form, "PORT") - form);
    snprintf(url, sizeof url, "%.*s%d%s", port_at, form, server.port, form + port_at + 4);
    int rc = store_suite_run(&(struct store_suite){open_url, store_close, restart});
    server_process_stop(&server);
    return rc;
}

int main(int argc, char **argv)
{
    static char *redis[] = {"redis-server", "--port", "PORT",         "--bind", "127.0.0.1",
                            "--save",       "",       "--appendonly", "no",     NULL};
    const char *kind = argc > 1 ? argv[1] : "mem";
    if (strcmp(kind, "redis") == 0)
        return run_with_server("resp://127.0.0.1:PORT", redis);
    static const char *const forms[][2] = {{"rendezvousd", "resp://127.0.0.1:PORT"},
                                           {"tcp1", "tcp://127.0.0.1:PORT?generation=1"},
                                           {"tcp2", "tcp://127.0.0.1:PORT"}};
    for (size_t i = 0; i < sizeof forms / sizeof *forms && argc > 2; i++)
        if (strcmp(kind, forms[i][0]) == 0)
            return run_with_server(forms[i][1], (char *[]){argv[2], "--bind", "127.0.0.1", "--port", "PORT", NULL});
    struct store_suite suite = {open_url, store_close, NULL};
    if (strcmp(kind, "url") == 0 && argc > 2)
        snprintf(url, sizeof url, "%s", argv[2]);
    if (strcmp(kind, "prefix") == 0)
        suite = (struct store_suite){open_view, close_view, NULL};
    keeper = open_url();
    int rc = store_suite_run(&suite);
    store_close(keeper);
    return rc;
}

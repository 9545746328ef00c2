/* Two ends of a TLS stream talk through buffers; certificates come from openssl(1). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/net/tls_stream.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char dir[] = "/tmp/tls-XXXXXX";
static char cert[64], key[64], other_cert[64], other_key[64];

static int make(void **state)
{
    char cmd[1024];
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    snprintf(cert, sizeof cert, "%s/cert.pem", dir);
    snprintf(key, sizeof key, "%s/key.pem", dir);
    snprintf(other_cert, sizeof other_cert, "%s/other-cert.pem", dir);
    snprintf(other_key, sizeof other_key, "%s/other-key.pem", dir);
    for (int i = 0; i < 2; i++) {
        snprintf(cmd, sizeof cmd,
                 "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout %s -out %s -days 2 "
                 "-subj /CN=%s "
                 "-addext 'subjectAltName=DNS:store.example,IP:127.0.0.1' >/dev/null 2>&1",
                 i ? other_key : key, i ? other_cert : cert, i ? "other" : "one");
        if (system(cmd) != 0) {
            print_message("# SKIP openssl(1) makes no certificate here\n");
            cert[0] = 0;
        }
    }
    return 0;
}

static int drop(void **state)
{
    char cmd[64];
    (void)state;
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", dir);
    return system(cmd);
}

struct end {
    struct tls_stream *t;
    struct buf in, out; /* plain text received, bytes to send */
    int rc;
    struct err e;
};

/* Move bytes between the two, `cut` at a time, until nothing moves any more. */
static void talk(struct end *a, struct end *b, size_t cut)
{
    for (int turns = 0; turns < 100000 && (a->out.len || b->out.len); turns++) {
        struct end *from = a->out.len ? a : b, *to = a->out.len ? b : a;
        size_t n = from->out.len < cut ? from->out.len : cut;
        if (to->rc == 0)
            to->rc = tls_stream_feed(to->t, from->out.data, n, &to->in, &to->out, &to->e);
        buf_consume(&from->out, n);
    }
}

static void begin(struct end *c, struct end *s, struct tls_context *cc, struct tls_context *sc, const char *name)
{
    memset(c, 0, sizeof *c);
    memset(s, 0, sizeof *s);
    assert_int_equal(tls_stream_create(&c->t, cc, name, &c->e), 0);
    assert_int_equal(tls_stream_create(&s->t, sc, NULL, &s->e), 0);
    c->rc = tls_stream_feed(c->t, NULL, 0, &c->in, &c->out, &c->e);
}

static void end(struct end *x)
{
    tls_stream_free(x->t);
    buf_free(&x->in);
    buf_free(&x->out);
}

static void need_openssl(void)
{
    if (!cert[0])
        skip();
}

static void words_pass_both_ways_however_they_are_cut(void **state)
{
    static const size_t cuts[] = {1, 7, 65536};
    struct tls_context *cc, *sc;
    struct end c, s;
    struct err e;
    (void)state;
    need_openssl();
    assert_int_equal(tls_context_server(&sc, cert, key, NULL, &e), 0);
    assert_int_equal(tls_context_client(&cc, cert, NULL, NULL, &e), 0);
    char *big = calloc(1, 300000);
    memset(big, 'x', 300000);
    for (size_t i = 0; i < 3; i++) {
        begin(&c, &s, cc, sc, i ? "store.example" : "127.0.0.1");
        assert_int_equal(tls_stream_write(c.t, "before", 6, &c.out, &c.e), 0); /* the handshake is not over */
        talk(&c, &s, cuts[i]);
        assert_true(tls_stream_ready(c.t) && tls_stream_ready(s.t));
        assert_int_equal(s.in.len, 6);
        assert_memory_equal(s.in.data, "before", 6);
        size_t n = i ? 300000 : 3000;
        assert_int_equal(tls_stream_write(s.t, big, n, &s.out, &s.e), 0);
        talk(&c, &s, cuts[i]);
        assert_int_equal(c.in.len, n);
        tls_stream_end(s.t, &s.out);
        talk(&c, &s, cuts[i]);
        assert_int_equal(c.rc, 1);
        end(&c);
        end(&s);
    }
    free(big);
    tls_context_free(cc);
    tls_context_free(sc);
}

static void a_certificate_of_somebody_else_is_refused(void **state)
{
    struct tls_context *cc, *sc;
    struct end c, s;
    struct err e;
    (void)state;
    need_openssl();
    assert_int_equal(tls_context_server(&sc, other_cert, other_key, NULL, &e), 0);
    assert_int_equal(tls_context_client(&cc, cert, NULL, NULL, &e), 0);
    begin(&c, &s, cc, sc, "store.example");
    talk(&c, &s, 4096);
    assert_int_equal(c.rc, -ECONNABORTED);
    assert_non_null(strstr(c.e.text, "certificate is refused"));
    end(&c);
    end(&s);
    tls_context_free(cc);
    assert_int_equal(tls_context_client(&cc, other_cert, NULL, NULL, &e), 0);
    begin(&c, &s, cc, sc, "another.example"); /* right authority, wrong name */
    talk(&c, &s, 4096);
    assert_int_equal(c.rc, -ECONNABORTED);
    end(&c);
    end(&s);
    tls_context_free(cc);
    tls_context_free(sc);
}

static void a_server_may_ask_for_certificates(void **state)
{
    struct tls_context *with, *without, *sc;
    struct end c, s;
    struct err e;
    (void)state;
    need_openssl();
    assert_int_equal(tls_context_server(&sc, cert, key, other_cert, &e), 0);
    assert_int_equal(tls_context_client(&with, cert, other_cert, other_key, &e), 0);
    assert_int_equal(tls_context_client(&without, cert, NULL, NULL, &e), 0);
    begin(&c, &s, with, sc, "store.example");
    talk(&c, &s, 4096);
    assert_true(tls_stream_ready(s.t));
    end(&c);
    end(&s);
    begin(&c, &s, without, sc, "store.example");
    talk(&c, &s, 4096);
    assert_int_equal(s.rc, -ECONNABORTED);
    assert_false(tls_stream_ready(s.t));
    end(&c);
    end(&s);
    tls_context_free(with);
    tls_context_free(without);
    tls_context_free(sc);
}

static void noise_ends_in_one_sentence(void **state)
{
    struct tls_context *sc;
    struct end s = {0};
    struct err e;
    (void)state;
    need_openssl();
    assert_int_equal(tls_context_server(&sc, cert, key, NULL, &e), 0);
    assert_int_equal(tls_stream_create(&s.t, sc, NULL, &e), 0);
    assert_int_equal(tls_stream_feed(s.t, "\x16\x03GET / HTTP/1.0\r\n\r\n", 20, &s.in, &s.out, &e), -ECONNABORTED);
    assert_non_null(strstr(e.text, "TLS: "));
    end(&s);
    tls_context_free(sc);
}

static void files_that_cannot_be_used_are_named(void **state)
{
    struct tls_context *c;
    struct err e;
    (void)state;
    need_openssl();
    assert_int_equal(tls_context_server(&c, "/nonexistent/cert", key, NULL, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "certificate '/nonexistent/cert' cannot be used"));
    assert_int_equal(tls_context_server(&c, cert, "/nonexistent/key", NULL, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "private key '/nonexistent/key' cannot be used: No such file or directory"));
    assert_int_equal(tls_context_server(&c, cert, other_key, NULL, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "private key"));
    assert_int_equal(tls_context_server(&c, cert, key, "/nonexistent/ca", &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "client authority '/nonexistent/ca'"));
    assert_int_equal(tls_context_client(&c, "/nonexistent/ca", NULL, NULL, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "authority '/nonexistent/ca'"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_pass_both_ways_however_they_are_cut),
        cmocka_unit_test(a_certificate_of_somebody_else_is_refused),
        cmocka_unit_test(a_server_may_ask_for_certificates),
        cmocka_unit_test(noise_ends_in_one_sentence),
        cmocka_unit_test(files_that_cannot_be_used_are_named),
    };
    return cmocka_run_group_tests(tests, make, drop);
}

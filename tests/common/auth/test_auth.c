/* Challenge and response, and the files that secrets live in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/auth/auth.h"
#include "common/base/err.h"
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct auth_token alice = {"alice", "0123456789abcdef-alice"};
static const struct auth_token other = {"alice", "0123456789abcdef-other"};

/* One whole dance; true if both sides are content. instance: what the client is told. */
static bool dance(const struct auth_token *ours, const struct auth_token *theirs, struct err *e)
{
    struct auth_client c;
    struct auth_server s;
    char nonce[AUTH_HEX + 1], server_proof[AUTH_HEX + 1], proof[AUTH_HEX + 1];
    assert_int_equal(auth_client_begin(&c, ours, e), 0);
    assert_int_equal(
        auth_server_challenge(&s, theirs, c.token.principal, c.nonce, AUTH_HEX, "i1", nonce, server_proof, e), 0);
    int rc = auth_client_answer(&c, nonce, AUTH_HEX, server_proof, AUTH_HEX, "i1", 2, proof, e);
    bool ok = rc == 0 && auth_server_check(&s, proof, AUTH_HEX);
    auth_client_end(&c);
    return ok;
}

static void both_sides_accept_the_same_secret(void **state)
{
    struct err e;
    (void)state;
    assert_true(dance(&alice, &alice, &e));
}

static void a_server_without_our_secret_is_refused_by_the_client(void **state)
{
    struct err e;
    (void)state;
    assert_false(dance(&alice, &other, &e));
    assert_int_equal(e.code, ERR_REFUSED);
    assert_non_null(strstr(e.text, "does not hold the secret that we hold for principal 'alice'"));
    assert_null(strstr(e.text, alice.secret));
}

static void an_unknown_principal_is_challenged_like_any_other_and_never_accepted(void **state)
{
    struct auth_client c;
    struct auth_server s;
    struct err e;
    char nonce[AUTH_HEX + 1], server_proof[AUTH_HEX + 1];
    (void)state;
    assert_int_equal(auth_client_begin(&c, &alice, &e), 0);
    assert_int_equal(auth_server_challenge(&s, NULL, "alice", c.nonce, AUTH_HEX, "i1", nonce, server_proof, &e), 0);
    assert_int_equal(strlen(server_proof), AUTH_HEX);
    char expected[AUTH_HEX + 1];
    memcpy(expected, s.expected, sizeof expected); /* even who could guess it */
    assert_false(auth_server_check(&s, expected, AUTH_HEX));
}

/* Else the server's proof would tell whether it knows the principal. */
static void the_secret_of_an_unknown_principal_is_not_the_empty_one(void **state)
{
    const struct auth_token empty = {"alice", ""};
    struct auth_client c;
    struct auth_server s;
    struct err e;
    char nonce[AUTH_HEX + 1], server_proof[AUTH_HEX + 1], proof[AUTH_HEX + 1];
    (void)state;
    assert_int_equal(auth_client_begin(&c, &empty, &e), 0);
    assert_int_equal(auth_server_challenge(&s, NULL, "alice", c.nonce, AUTH_HEX, "i1", nonce, server_proof, &e), 0);
    assert_int_equal(auth_client_answer(&c, nonce, AUTH_HEX, server_proof, AUTH_HEX, "i1", 2, proof, &e), ERR_REFUSED);
    auth_client_end(&c);
}

static void a_proof_is_bound_to_nonces_role_and_instance_and_good_once(void **state)
{
    struct auth_client c;
    struct auth_server s, again;
    struct err e;
    char nonce[AUTH_HEX + 1], nonce2[AUTH_HEX + 1], server_proof[AUTH_HEX + 1], proof[AUTH_HEX + 1],
        unused[AUTH_HEX + 1];
    (void)state;
    assert_int_equal(auth_client_begin(&c, &alice, &e), 0);
    assert_int_equal(auth_server_challenge(&s, &alice, "alice", c.nonce, AUTH_HEX, "i1", nonce, server_proof, &e), 0);
    assert_int_equal(auth_client_answer(&c, nonce, AUTH_HEX, server_proof, AUTH_HEX, "i2", 2, proof, &e), ERR_REFUSED);
    assert_int_equal(auth_client_answer(&c, nonce, AUTH_HEX, server_proof, AUTH_HEX, "i1", 2, proof, &e), 0);
    assert_string_not_equal(proof, server_proof);
    struct auth_server copy = s;
    assert_false(auth_server_check(&copy, server_proof, AUTH_HEX)); /* reflected */
    copy = s;
    assert_false(auth_server_check(&copy, proof, AUTH_HEX - 1)); /* truncated */
    assert_true(auth_server_check(&s, proof, AUTH_HEX));
    assert_false(auth_server_check(&s, proof, AUTH_HEX)); /* used up */
    /* a listener repeats everything the client said, on a connection of its own */
    assert_int_equal(auth_server_challenge(&again, &alice, "alice", c.nonce, AUTH_HEX, "i1", nonce2, unused, &e), 0);
    assert_string_not_equal(nonce, nonce2);
    assert_false(auth_server_check(&again, proof, AUTH_HEX));
}

static void what_is_no_nonce_or_proof_is_refused(void **state)
{
    struct auth_client c;
    struct auth_server s;
    struct err e;
    char nonce[AUTH_HEX + 1], proof[AUTH_HEX + 1];
    (void)state;
    assert_int_equal(auth_client_begin(&c, &alice, &e), 0);
    assert_int_equal(auth_server_challenge(&s, &alice, "alice", "abc", 3, "i1", nonce, proof, &e), ERR_CORRUPT);
    assert_false(auth_server_check(&s, "", 0));
    assert_int_equal(auth_client_answer(&c, "x", 1, "y", 1, "i1", 2, proof, &e), ERR_CORRUPT);
    char capitals[AUTH_HEX + 1];
    memset(capitals, 'F', AUTH_HEX);
    assert_int_equal(auth_server_challenge(&s, &alice, "alice", capitals, AUTH_HEX, "i1", nonce, proof, &e),
                     ERR_CORRUPT);
}

/* RFC-like check against an independent computation (python3: hmac.new(...)), so that other languages can follow the
 * page. */
static void the_proof_is_the_one_that_the_header_describes(void **state)
{
    char cmd[1024], expected[AUTH_HEX + 2] = {0};
    struct auth_client c = {.token = alice};
    struct auth_server s;
    struct err e;
    char nonce[AUTH_HEX + 1], server_proof[AUTH_HEX + 1];
    (void)state;
    if (system("/usr/bin/python3 -c 'import hmac' 2>/dev/null") != 0) {
        print_message("# SKIP python3 is not installed\n");
        skip();
    }
    memset(c.nonce, 'a', AUTH_HEX);
    assert_int_equal(auth_server_challenge(&s, &alice, "alice", c.nonce, AUTH_HEX, "i1", nonce, server_proof, &e), 0);
    snprintf(cmd, sizeof cmd,
             "/usr/bin/python3 -c \"import hmac; print(hmac.new(b'%s', "
             "b'\\0'.join([b'crun-auth-1', b'server', b'alice', b'a'*64, b'%s', b'i1', b'']), 'sha256').hexdigest())\"",
             alice.secret, nonce);
    FILE *f = popen(cmd, "r");
    assert_non_null(fgets(expected, sizeof expected, f));
    pclose(f);
    expected[AUTH_HEX] = 0; /* the newline */
    assert_string_equal(expected, server_proof);
}

static void comparison_looks_at_length_and_every_byte(void **state)
{
    (void)state;
    assert_true(auth_equal("abc", 3, "abc", 3));
    assert_false(auth_equal("abc", 3, "abd", 3));
    assert_false(auth_equal("xbc", 3, "abc", 3));
    assert_false(auth_equal("abc", 3, "ab", 2));
    assert_true(auth_equal("", 0, "", 0));
}

/* --- token files */

static void token_lines_are_read_and_mistakes_are_named_by_line(void **state)
{
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"", "t has no line 'principal secret'"},
        {"# only a comment\n\n", "t has no line 'principal secret'"},
        {"alice\n", "t, line 1: the secret of 'alice' has 0 characters: expected 16 to 255"},
        {"\nalice short\n", "t, line 2: the secret of 'alice' has 5 characters"},
        {"al/ice 0123456789abcdef\n", "t, line 1: expected 'principal secret'"},
        {"alice 0123456789abcdef more\n", "t, line 1: more than 'principal secret'"},
        {"alice 0123456789abcdef\nalice 0123456789abcdeX", "t, line 2: principal 'alice' stands there twice"},
    };
    struct auth_tokens t;
    struct err e;
    (void)state;
    static const char good[] = "# who\n\n  alice\t0123456789abcdef \r\nbob@site 0123456789ABCDEF#x";
    assert_int_equal(auth_tokens_parse(&t, good, strlen(good), "t", &e), 0);
    assert_int_equal(t.n, 2);
    assert_string_equal(auth_tokens_find(&t, "alice", 5)->secret, "0123456789abcdef");
    assert_string_equal(auth_tokens_find(&t, "bob@site", 8)->secret, "0123456789ABCDEF#x");
    assert_null(auth_tokens_find(&t, "bob", 3));
    auth_tokens_free(&t);
    assert_int_equal(t.n, 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(auth_tokens_parse(&t, bad[i].text, strlen(bad[i].text), "t", &e), ERR_USAGE);
        if (!strstr(e.text, bad[i].says))
            fail_msg("said '%s', expected '%s'", e.text, bad[i].says);
        assert_null(strstr(e.text, "0123456789"));
    }
}

static void write_file(const char *path, const char *text, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

/* As Kubernetes mounts a Secret: root's, and a group's that we are in. */
static void roots_file_may_be_read_by_a_group_of_ours(void **state)
{
    static const struct {
        uid_t uid;
        gid_t gid;
        mode_t mode;
        int rc;
    } cases[] = {{0, 4242, 0440, 0},         {0, 4242, 0640, 0},
                 {0, 4243, 0440, ERR_USAGE}, {1000, 4242, 0440, ERR_USAGE},
                 {0, 4242, 0460, ERR_USAGE}, {0, 4242, 0444, ERR_USAGE}};
    char path[] = "/tmp/auth-secret-XXXXXX";
    struct auth_tokens t;
    struct err e;
    gid_t before[64];
    const int n = getgroups(64, before);
    const int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0 && n >= 0);
    close(fd);
    if (setgroups(1, &(gid_t){4242}) == 0) { /* else not root */
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            write_file(path, "me 0123456789abcdef\n", 0600);
            assert_int_equal(chown(path, cases[i].uid, cases[i].gid), 0);
            assert_int_equal(chmod(path, cases[i].mode), 0);
            assert_int_equal(auth_tokens_read(&t, path, &e), cases[i].rc);
            if (cases[i].rc == 0)
                auth_tokens_free(&t);
        }
        assert_int_equal(setgroups((size_t)n, before), 0);
    }
    unlink(path);
}

static void a_file_that_others_may_read_is_refused_with_the_remedy(void **state)
{
    static const mode_t bad[] = {0644, 0640, 0604, 0620, 0660};
    char dir[] = "/tmp/auth-XXXXXX", path[64];
    struct auth_tokens t;
    struct err e;
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/token", dir);
    assert_int_equal(auth_tokens_read(&t, path, &e), -ENOENT);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_file(path, "alice 0123456789abcdef\n", bad[i]);
        assert_int_equal(auth_tokens_read(&t, path, &e), ERR_USAGE);
        assert_non_null(strstr(e.text, "chmod 600"));
    }
    write_file(path, "alice 0123456789abcdef\n", 0600);
    assert_int_equal(auth_tokens_read(&t, path, &e), 0);
    auth_tokens_free(&t);
    unlink(path);
    rmdir(dir);
}

static void an_inherited_descriptor_is_read_to_its_end(void **state)
{
    int p[2];
    char name[16];
    struct auth_tokens t;
    struct err e;
    (void)state;
    assert_int_equal(pipe(p), 0);
    assert_int_equal(write(p[1], "alice 0123456789abcdef\n", 23), 23);
    close(p[1]);
    snprintf(name, sizeof name, "fd:%d", p[0]);
    assert_int_equal(auth_tokens_read(&t, name, &e), 0);
    assert_string_equal(t.v[0].principal, "alice");
    auth_tokens_free(&t);
    assert_int_equal(auth_tokens_read(&t, name, &e), -EBADF); /* closed */
    assert_int_equal(auth_tokens_read(&t, "fd:", &e), ERR_USAGE);
    assert_int_equal(auth_tokens_read(&t, "fd:3x", &e), ERR_USAGE);
}

/* --- one's own token */

static char home[] = "/tmp/auth-home-XXXXXX";

static int make_home(void **state)
{
    (void)state;
    strcpy(home, "/tmp/auth-home-XXXXXX");
    return mkdtemp(home) && setenv("HOME", home, 1) == 0 ? 0 : -1;
}

static int drop_home(void **state)
{
    char cmd[128];
    (void)state;
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", home);
    return system(cmd);
}

static void a_token_is_made_once_for_its_owner_alone(void **state)
{
    struct auth_tokens a, b;
    enum auth_origin from;
    struct stat st;
    struct err e;
    char path[128];
    (void)state;
    assert_int_equal(auth_tokens_own(&a, NULL, &from, &e), 0);
    assert_int_equal(from, AUTH_FROM_HOME);
    assert_int_equal(auth_tokens_own(&b, NULL, &from, &e), 0);
    assert_string_equal(a.v[0].secret, b.v[0].secret);
    assert_int_equal(strlen(a.v[0].secret), 64);
    snprintf(path, sizeof path, "%s/.config/crun/token", home);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(chmod(path, 0644), 0);
    struct auth_tokens none;
    assert_int_equal(auth_tokens_own(&none, NULL, &from, &e), ERR_USAGE); /* never passed over in silence */
    auth_tokens_free(&a);
    auth_tokens_free(&b);
}

static void a_variable_holds_a_secret_with_or_without_its_principal(void **state)
{
    static const struct {
        const char *text, *principal; /* principal NULL: refused */
    } cases[] = {
        {"0123456789abcdef", AUTH_PRINCIPAL},
        {" 0123456789abcdef\n", AUTH_PRINCIPAL},
        {"alice 0123456789abcdef", "alice"},
        {"short", NULL},
        {"alice 0123456789abcdef more", NULL},
        {"16-CHARACTERS-OR-MORE", NULL},
        {"SECRET", NULL},
    };
    enum auth_origin from;
    struct auth_tokens t;
    struct err e;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv(AUTH_VARIABLE, cases[i].text, 1);
        const int rc = auth_tokens_own(&t, NULL, &from, &e);
        assert_int_equal(from, AUTH_FROM_VARIABLE);
        assert_int_equal(rc, cases[i].principal ? 0 : ERR_USAGE);
        if (rc == 0) {
            assert_string_equal(t.v[0].principal, cases[i].principal);
            assert_string_equal(t.v[0].secret, "0123456789abcdef");
            auth_tokens_free(&t);
        } else {
            assert_non_null(strstr(e.text, AUTH_VARIABLE));
        }
    }
    unsetenv(AUTH_VARIABLE);
}

static void *own(void *arg)
{
    struct auth_tokens *t = arg;
    enum auth_origin from;
    struct err e;
    return auth_tokens_own(t, NULL, &from, &e) == 0 && from == AUTH_FROM_HOME ? t : NULL;
}

static void many_that_make_it_at_once_get_the_same(void **state)
{
    enum { N = 16 };
    pthread_t th[N];
    struct auth_tokens t[N];
    void *ok;
    (void)state;
    for (int i = 0; i < N; i++)
        assert_int_equal(pthread_create(&th[i], NULL, own, &t[i]), 0);
    for (int i = 0; i < N; i++) {
        pthread_join(th[i], &ok);
        assert_non_null(ok);
        assert_string_equal(t[i].v[0].secret, t[0].v[0].secret);
    }
    for (int i = 0; i < N; i++)
        auth_tokens_free(&t[i]);
}

static void without_a_home_a_token_is_drawn(void **state)
{
    struct auth_tokens a, b;
    enum auth_origin from;
    struct err e;
    (void)state;
    setenv("HOME", "/nonexistent", 1);
    assert_int_equal(auth_tokens_own(&a, NULL, &from, &e), 0);
    assert_int_equal(from, AUTH_FROM_DRAWN);
    unsetenv("HOME");
    assert_int_equal(auth_tokens_own(&b, NULL, &from, &e), 0);
    assert_int_equal(from, AUTH_FROM_DRAWN);
    assert_string_not_equal(a.v[0].secret, b.v[0].secret);
    auth_tokens_free(&a);
    auth_tokens_free(&b);
    assert_int_equal(auth_tokens_own(&a, "/nonexistent/token", &from, &e), -ENOENT); /* a named file must be there */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_sides_accept_the_same_secret),
        cmocka_unit_test(a_server_without_our_secret_is_refused_by_the_client),
        cmocka_unit_test(an_unknown_principal_is_challenged_like_any_other_and_never_accepted),
        cmocka_unit_test(the_secret_of_an_unknown_principal_is_not_the_empty_one),
        cmocka_unit_test(a_proof_is_bound_to_nonces_role_and_instance_and_good_once),
        cmocka_unit_test(what_is_no_nonce_or_proof_is_refused),
        cmocka_unit_test(the_proof_is_the_one_that_the_header_describes),
        cmocka_unit_test(comparison_looks_at_length_and_every_byte),
        cmocka_unit_test(token_lines_are_read_and_mistakes_are_named_by_line),
        cmocka_unit_test(roots_file_may_be_read_by_a_group_of_ours),
        cmocka_unit_test(a_file_that_others_may_read_is_refused_with_the_remedy),
        cmocka_unit_test(an_inherited_descriptor_is_read_to_its_end),
        cmocka_unit_test(a_variable_holds_a_secret_with_or_without_its_principal),
        cmocka_unit_test_setup_teardown(a_token_is_made_once_for_its_owner_alone, make_home, drop_home),
        cmocka_unit_test_setup_teardown(many_that_make_it_at_once_get_the_same, make_home, drop_home),
        cmocka_unit_test_setup_teardown(without_a_home_a_token_is_drawn, make_home, drop_home),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

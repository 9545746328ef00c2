/* Places at the gate: who gives way, and what one principal may take. Everything happens within turns of the loop: no
 * time passes for anybody. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "rendezvousd/net/gate.h"
#include "tests/rendezvousd/harness.h"
#include "tests/rendezvousd/rig.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ALICE "AUTH alice alice-0123456789abcdef\r\n"
#define BOB "AUTH bob bob-0123456789abcdefgh\r\n"
#define GAVE_WAY "-TIMEOUT not authenticated within "

struct door {
    struct rig rig;
    struct gate *gate;
};

static void door_start(struct door *d, struct gate_options o, size_t max_clients, size_t max_memory)
{
    static const char tokens[] = "alice alice-0123456789abcdef\nbob bob-0123456789abcdefgh\n";
    char path[] = "/tmp/test-gate-XXXXXX";
    struct err e;
    const int fd = mkstemp(path);
    assert_int_equal(write(fd, tokens, sizeof tokens - 1), sizeof tokens - 1);
    close(fd);
    o.token_file = path;
    o.plain_auth = true;
    o.auth_timeout_ms = 3600000;
    if (gate_create(&d->gate, &o, &e) < 0)
        fail_msg("%s", e.text);
    unlink(path);
    rig_start(&d->rig,
              &(struct server_options){.gate = d->gate, .max_clients = max_clients, .max_memory_bytes = max_memory});
}

static void door_stop(struct door *d)
{
    rig_stop(&d->rig);
    gate_destroy(d->gate);
}

/* What has come to it by now begins so. */
static void has(struct door *d, int fd, const char *text)
{
    struct buf in = {0};
    rig_receive(&d->rig, fd, &in);
    if (strncmp(in.len ? in.data : "", text, strlen(text)) != 0)
        fail_msg("'%s' instead of '%s'", in.len ? in.data : "", text);
    buf_free(&in);
}

static bool is_open(struct door *d, int fd)
{
    struct buf in = {0};
    const bool open = rig_receive(&d->rig, fd, &in);
    buf_free(&in);
    return open;
}

static void say(struct door *d, int fd, const char *text)
{
    rig_send(&d->rig, fd, text, strlen(text));
}

static void the_oldest_that_has_said_nothing_gives_way(void **state)
{
    struct door d;
    int idle[6];
    (void)state;
    door_start(&d, (struct gate_options){.max_unauthenticated = 4}, 0, 0);
    for (int i = 0; i < 4; i++)
        idle[i] = rig_open(&d.rig);
    say(&d, idle[0], "*");
    idle[4] = rig_open(&d.rig);
    has(&d, idle[1], GAVE_WAY);
    assert_false(is_open(&d, idle[1]));
    const int late = rig_open(&d.rig);
    say(&d, late, ALICE);
    has(&d, late, "+OK\r\n");
    has(&d, idle[2], GAVE_WAY);
    assert_true(is_open(&d, idle[0]));
    assert_true(is_open(&d, idle[3]));
    assert_true(is_open(&d, idle[4]));
    idle[5] = rig_open(&d.rig); /* the place that was left by a proof */
    assert_true(is_open(&d, idle[3]));
    for (int i = 0; i < 6; i++)
        close(idle[i]);
    close(late);
    door_stop(&d);
}

/* All of them come before the server looks: none has been read from yet. */
static void what_is_not_read_yet_has_been_said(void **state)
{
    enum { CROWD = 30 };
    struct door d;
    int fds[CROWD];
    (void)state;
    door_start(&d, (struct gate_options){.max_unauthenticated = 4}, 0, 0);
    for (int i = 0; i < CROWD; i++) {
        fds[i] = client_open(d.rig.port);
        assert_int_equal(send(fds[i], ALICE, strlen(ALICE), 0), strlen(ALICE));
    }
    for (int i = 0; i < CROWD; i++)
        rig_turn(&d.rig);
    for (int i = 0; i < CROWD; i++) {
        has(&d, fds[i], "+OK\r\n");
        close(fds[i]);
    }
    door_stop(&d);
}

static int open_as(struct door *d, uid_t uid)
{
    assert_int_equal(seteuid(uid), 0);
    const int fd = client_open(d->rig.port);
    assert_int_equal(seteuid(0), 0);
    rig_turn(&d->rig);
    return fd;
}

static void a_user_with_more_than_half_gives_way_first(void **state)
{
    struct door d;
    int ours[3], theirs[7];
    (void)state;
    if (geteuid() != 0) { /* another user's sockets */
        print_message("# needs root\n");
        skip();
    }
    door_start(&d, (struct gate_options){.max_unauthenticated = 8}, 0, 0);
    for (int i = 0; i < 2; i++)
        ours[i] = rig_open(&d.rig);
    for (int i = 0; i < 7; i++)
        theirs[i] = open_as(&d, 65534);
    assert_false(is_open(&d, theirs[0])); /* for its own seventh */
    ours[2] = rig_open(&d.rig);
    assert_false(is_open(&d, theirs[1]));
    for (int i = 0; i < 3; i++) {
        assert_true(is_open(&d, ours[i]));
        say(&d, ours[i], BOB);
        has(&d, ours[i], "+OK\r\n");
        close(ours[i]);
    }
    for (int i = 0; i < 7; i++)
        close(theirs[i]);
    door_stop(&d);
}

static void one_principal_leaves_places_to_others(void **state)
{
    struct door d;
    int bobs[4], idle[4];
    (void)state;
    door_start(&d, (struct gate_options){0}, 6, 0);
    for (int i = 0; i < 4; i++) {
        bobs[i] = rig_open(&d.rig);
        say(&d, bobs[i], BOB);
        has(&d, bobs[i], i < 3 ? "+OK\r\n" : "-LIMIT principal 'bob' has 3 connections, the most it may have");
    }
    assert_false(is_open(&d, bobs[3]));
    say(&d, bobs[0], BOB); /* again: it counts once */
    has(&d, bobs[0], "+OK\r\n");
    for (int i = 0; i < 4; i++) /* nor do strangers take them */
        idle[i] = rig_open(&d.rig);
    const int alice = rig_open(&d.rig);
    say(&d, alice, ALICE);
    has(&d, alice, "+OK\r\n");
    say(&d, bobs[0], ALICE); /* it is another's now: bob has room */
    has(&d, bobs[0], "+OK\r\n");
    const int more = rig_open(&d.rig);
    say(&d, more, BOB);
    has(&d, more, "+OK\r\n");
    for (int i = 0; i < 4; i++) {
        close(bobs[i]);
        close(idle[i]);
    }
    close(alice);
    close(more);
    door_stop(&d);
}

static void fill(struct door *d, int fd, int key, size_t n, const char *answer)
{
    struct buf b = {0};
    buf_printf(&b, "*3\r\n$3\r\nSET\r\n$4\r\nk%03d\r\n$%zu\r\n%0*d\r\n", key, n, (int)n, 0);
    rig_send(&d->rig, fd, b.data, b.len);
    has(d, fd, answer);
    buf_free(&b);
}

/* Of 64 KiB each of two has half, in whatever it keeps it; what is deleted is free again. */
static void one_principal_leaves_memory_to_others(void **state)
{
    struct door d;
    (void)state;
    door_start(&d, (struct gate_options){.own_spaces = true}, 0, 64 * 1024);
    const int alice = rig_open(&d.rig), bob = rig_open(&d.rig);
    say(&d, alice, ALICE);
    has(&d, alice, "+OK\r\n");
    say(&d, bob, BOB);
    has(&d, bob, "+OK\r\n");
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 7; i++)
            fill(&d, bob, i, 4000, "+OK\r\n");
        fill(&d, bob, 7, 4000, "-OOM ");
        for (int i = 0; i < 7; i++)
            fill(&d, alice, i, 4000, "+OK\r\n");
        say(&d, bob, round ? "FLUSHDB\r\n" : "DEL k000 k001 k002 k003 k004 k005 k006\r\n");
        has(&d, bob, round ? "+OK\r\n" : ":7\r\n");
        say(&d, alice, "FLUSHDB\r\n");
        has(&d, alice, "+OK\r\n");
    }
    close(alice);
    close(bob);
    door_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_oldest_that_has_said_nothing_gives_way),
        cmocka_unit_test(what_is_not_read_yet_has_been_said),
        cmocka_unit_test(a_user_with_more_than_half_gives_way_first),
        cmocka_unit_test(one_principal_leaves_places_to_others),
        cmocka_unit_test(one_principal_leaves_memory_to_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

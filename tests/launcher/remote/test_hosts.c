/* Lists of hosts as mpirun, MPICH and PBS write them; and what a remote agent is told. */
#include "launcher/remote/hosts.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "launcher/remote/remote_wire.h"

static const char *text_of(const struct hosts *h)
{
    static char out[512];
    out[0] = 0;
    for (int i = 0; i < h->n; i++)
        snprintf(out + strlen(out), sizeof out - strlen(out), "%s%s=%d", i ? " " : "", h->v[i].name, h->v[i].slots);
    return out;
}

static void lists_are_read_as_mpirun_reads_them(void **state)
{
    static const struct {
        const char *list, *hosts;
    } cases[] = {
        {"a", "a=0"},
        {"node1:4,node2,user@node3.x-y.org:2", "node1=4 node2=0 user@node3.x-y.org=2"},
        {"a,b,a,a", "a=3 b=0"},
        {"a:2,a:3", "a=5"},
        {"[fd00::1]:8,fd00::2,[::1]", "fd00::1=8 fd00::2=0 ::1=0"},
        {"10.0.0.1:1", "10.0.0.1=1"},
        {" node1:4, node2:4 ,node3 ", "node1=4 node2=4 node3=0"},
        {"a: 1,b :2", "a=1 b=2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct hosts h = {0};
        struct err e;
        if (hosts_add_list(&h, cases[i].list, "-H", &e) < 0)
            fail_msg("%s: %s", cases[i].list, e.text);
        assert_string_equal(text_of(&h), cases[i].hosts);
        hosts_free(&h);
    }
}

static void files_of_three_kinds_are_read(void **state)
{
    struct hosts h = {0};
    struct err e;
    assert_int_equal(hosts_add_text(&h,
                                    "# a cluster\n\nnode1 slots=4 max_slots=8\nnode2:2\r\n  node3\t# the last\n"
                                    "pbs\npbs\n",
                                    "file", &e),
                     0);
    assert_string_equal(text_of(&h), "node1=4 node2=2 node3=0 pbs=2");
    hosts_free(&h);
}

static void files_are_read_as_their_programs_read_them(void **state)
{
    static const struct {
        const char *of, *text, *hosts;
    } cases[] = {
        {"Open MPI", "\xef\xbb\xbfn1 slots=4 max_slots=8\nn2 slots = 2\nn3 slots=0\nn4 cpu=3\nn5 count =1\nu@n6\n",
         "n1=4 n2=2 n4=3 n5=1 u@n6=0"},
        {"MPICH", "n1:2\nn2 : 4:eth0\nn3:1 binding=user:0,1 ifname=ib0\nn4 user=me\nfe80::1\nfd00::2:1\n",
         "n1=2 n2=4 n3=1 me@n4=0 fe80::1=0 fd00::2:1=0"},
        {"DeepSpeed", "# two workers\nworker-1 slots=8\n\nworker-2 slots=8 # the last\n", "worker-1=8 worker-2=8"},
        {"Torque", "n1 np=4\nn2 np=2\n", "n1=4 n2=2"},
        {"Open MPI 5", "n1 slots=4 sockets=2 gpus=4\nn2 slots=2 username=me\n", "n1=4 me@n2=2"},
        {"Grid Engine", "n1.site 4 all.q@n1.site UNDEFINED\nn2.site 2 all.q@n2.site <NULL>\n", "n1.site=4 n2.site=2"},
        {"PBS", "n1.site\nn1.site\nn2.site\nn2.site", "n1.site=2 n2.site=2"},
    };
    struct err e;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct hosts h = {0};
        if (hosts_add_text(&h, cases[i].text, cases[i].of, &e) < 0)
            fail_msg("%s", e.text);
        assert_string_equal(text_of(&h), cases[i].hosts);
        hosts_free(&h);
    }
    static const char *const wrong[] = {
        "n1 slots=-1", "n1 slot=2", "n1 user=a@b", "n1 user=", "n1 = 2", "n1 slots=", "n1:x:eth0"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct hosts h = {0};
        if (hosts_add_text(&h, wrong[i], "file", &e) != ERR_USAGE || !strstr(e.text, "file, line 1"))
            fail_msg("'%s': %s", wrong[i], e.text);
        hosts_free(&h);
    }
}

static void what_is_no_host_is_refused(void **state)
{
    static const struct {
        const char *list, *part;
    } cases[] = {
        {"", "-H: host ''"},           {"a,,b", "-H: host ''"},      {"-oProxyCommand=x", "host '-oProxyCommand=x'"},
        {"user@-x", "host 'user@-x'"}, {"a b", "host 'a b'"},        {"a;reboot", "host 'a;reboot'"},
        {"a:0", "host 'a:0': slots"},  {"a:x", "host 'a:x': slots"}, {"[::1", "closing bracket"},
        {"[::1]x", "host '[::1]x'"},   {"a@b@c", "host 'a@b@c'"},
    };
    struct err e;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct hosts h = {0};
        if (hosts_add_list(&h, cases[i].list, "-H", &e) != ERR_USAGE || !strstr(e.text, cases[i].part))
            fail_msg("'%s': %s", cases[i].list, e.text);
        hosts_free(&h);
    }
    struct hosts h = {0};
    assert_int_equal(hosts_add_text(&h, "a\nb cores=3\n", "file", &e), ERR_USAGE);
    assert_string_equal(e.text, "file, line 2: 'cores=3': expected slots=N");
    hosts_free(&h);
}

static void write_all(int fd, const void *data, size_t n)
{
    assert_int_equal(write(fd, data, n), n);
}

static void an_order_ends_where_it_says(void **state)
{
    int ends[2];
    char byte;
    struct buf b = {0};
    struct err e;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    write_all(ends[1], REMOTE_MAGIC " 6\nAab\0S\0\017", sizeof REMOTE_MAGIC - 1 + 3 + 7);
    assert_int_equal(remote_read(ends[0], &b, 1000, &e), 0);
    assert_int_equal(b.len, 6);
    assert_memory_equal(b.data, "Aab\0S\0", 6);
    assert_int_equal(read(ends[0], &byte, 1), 1);
    assert_int_equal(byte, 15);
    buf_free(&b);
    close(ends[0]);
    close(ends[1]);
}

static void what_is_no_order_is_refused(void **state)
{
    static const struct {
        const char *text;
        bool open; /* the writer stays */
        int code;
    } cases[] = {{"hello\n", true, ERR_CORRUPT},
                 {"", false, ERR_CORRUPT},
                 {"", true, -ETIMEDOUT},
                 {REMOTE_MAGIC " 0\n", true, ERR_CORRUPT},
                 {REMOTE_MAGIC " 99999999\n", true, ERR_CORRUPT},
                 {REMOTE_MAGIC " 5\nAab", false, ERR_CORRUPT},
                 {REMOTE_MAGIC " 3\nAab", true, ERR_CORRUPT},
                 {"crun-agent 2 3\nAab", true, ERR_CORRUPT}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int ends[2];
        struct buf b = {0};
        struct err e = {0};
        assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
        write_all(ends[1], cases[i].text, strlen(cases[i].text));
        if (!cases[i].open)
            close(ends[1]);
        if (remote_read(ends[0], &b, 50, &e) != cases[i].code)
            fail_msg("case %zu: %d %s", i, e.code, e.text);
        buf_free(&b);
        close(ends[0]);
        if (cases[i].open)
            close(ends[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_read_as_mpirun_reads_them),
        cmocka_unit_test(files_of_three_kinds_are_read),
        cmocka_unit_test(files_are_read_as_their_programs_read_them),
        cmocka_unit_test(what_is_no_host_is_refused),
        cmocka_unit_test(an_order_ends_where_it_says),
        cmocka_unit_test(what_is_no_order_is_refused),
    };
    return cmocka_run_group_tests_name("hosts", tests, NULL, NULL);
}

/* What is found out before NCCL begins: records, versions, two ranks on one GPU, interfaces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/comm/nccl/nccl_peers.h"

static struct nccl_peer peer(const char *host, const char *hostid, const char *gpu, int version)
{
    struct nccl_peer p = {.version = version, .id = "-"};
    strcpy(p.host, host);
    strcpy(p.hostid, hostid);
    strcpy(p.gpu, gpu);
    return p;
}

static void a_record_comes_back_as_it_was(void **state)
{
    (void)state;
    struct nccl_peer mine = peer("boot:17", "-", "0123", 22809), back;
    unsigned char id[NCCL_ID_BYTES], other[NCCL_ID_BYTES];
    char text[NCCL_RECORD_BYTES];
    struct err e;
    for (int i = 0; i < NCCL_ID_BYTES; i++)
        id[i] = (unsigned char)(i * 37 + 250);
    nccl_id_write(id, mine.id);
    nccl_peer_write(&mine, text);
    assert_int_equal(nccl_peer_read(&back, text, 0, &e), 0);
    assert_memory_equal(&back, &mine, sizeof mine);
    assert_int_equal(nccl_id_read(other, back.id, &e), 0);
    assert_memory_equal(id, other, sizeof id);
    assert_int_equal(nccl_peer_read(&back, "22809 boot", 3, &e), -EPROTO);
    assert_non_null(strstr(e.text, "rank 3"));
    assert_int_equal(nccl_id_read(other, "-", &e), -EPROTO);
}

static void different_versions_are_refused_and_both_ranks_named(void **state)
{
    (void)state;
    struct nccl_peer p[] = {peer("a", "-", "1", 22809), peer("a", "-", "2", 22809), peer("b", "-", "1", 22705)};
    struct err e;
    assert_int_equal(nccl_peers_check(p, 3, &e), ERR_MISMATCH);
    if (!strstr(e.text, "rank 0 has NCCL 2.28.9") || !strstr(e.text, "rank 2 has NCCL 2.27.5"))
        fail_msg("%s", e.text);
    assert_int_equal(nccl_peers_check(p, 2, &e), 0);
}

static void two_ranks_on_one_gpu_are_refused_and_both_named(void **state)
{
    (void)state;
    struct nccl_peer p[] = {peer("a", "-", "1", 22809), peer("b", "-", "7", 22809), peer("b", "-", "7", 22809)};
    struct err e;
    assert_int_equal(nccl_peers_check(p, 3, &e), -EBUSY);
    if (!strstr(e.text, "ranks 1 and 2"))
        fail_msg("%s", e.text);
    strcpy(p[2].hostid, "another"); /* NCCL_HOSTID: to pass for two hosts */
    assert_int_equal(nccl_peers_check(p, 3, &e), 0);
}

static void interfaces_are_chosen_as_nccl_chooses_them(void **state)
{
    (void)state;
    static const struct {
        const char *setting, *name;
        bool allowed;
    } all[] = {
        {NULL, "eth0", true},      {NULL, "lo", false},     {"", "docker0", false},        {"eth", "eth1", true},
        {"eth", "ib0", false},     {"=eth", "eth1", false}, {"=eth1", "eth1", true},       {"eth0,ib", "ib3", true},
        {"^docker", "eth0", true}, {"^docker", "lo", true}, {"^docker", "docker0", false}, {"^=eth0", "eth0", false},
        {"^=eth0", "eth01", true}, {"lo", "lo", true},
    };
    struct err e;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (nccl_interface_allowed(all[i].setting, all[i].name) != all[i].allowed)
            fail_msg("'%s' and %s: expected %d", all[i].setting ? all[i].setting : "(unset)", all[i].name,
                     all[i].allowed);
    assert_int_equal(nccl_interfaces_check("lo", &e), 0);
    assert_int_equal(nccl_interfaces_check("nosuch0", &e), -ENODEV);
    if (!strstr(e.text, "'nosuch0'") || !strstr(e.text, "lo"))
        fail_msg("%s", e.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_comes_back_as_it_was),
        cmocka_unit_test(different_versions_are_refused_and_both_ranks_named),
        cmocka_unit_test(two_ranks_on_one_gpu_are_refused_and_both_named),
        cmocka_unit_test(interfaces_are_chosen_as_nccl_chooses_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

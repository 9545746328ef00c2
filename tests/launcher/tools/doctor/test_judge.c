/* What is a finding and what is none, from facts that no machine here has: kernels, limits, adapters, GPUs. */
#include "launcher/tools/doctor/judge.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

/* A machine without a fault, but for what the JSON says. */
static struct facts machine(const char *differs)
{
    struct facts f;
    char text[2048];
    snprintf(text, sizeof text,
             "{\"name\":\"n\",\"kernel\":\"6.1.0-13-amd64\",\"version\":\"1.0.0\",\"python\":\"/usr/bin/python3\","
             "\"python_from\":\"PATH\",\"python_version\":\"3.11.2\",\"pidfd\":1,\"proc\":1,\"files\":1024,"
             "\"processes\":96000,\"locked\":8388608,\"cores\":64,\"shm\":8589934592,\"pci_gpus\":0,\"gpus\":0}");
    cJSON *o = cJSON_Parse(text), *changes = cJSON_Parse(differs), *one;
    assert_non_null(o);
    assert_non_null(changes);
    while ((one = changes->child)) {
        cJSON_DetachItemViaPointer(changes, one);
        cJSON_DeleteItemFromObject(o, one->string);
        cJSON_AddItemToObject(o, one->string, one);
    }
    facts_from_json(o, &f);
    cJSON_Delete(o);
    cJSON_Delete(changes);
    return f;
}

/* "kernel" or "mtu,nic", and the last sentence. */
static const char *names_of(const struct findings *f)
{
    static char out[512];
    out[0] = '\0';
    for (size_t i = 0; i < f->n; i++)
        snprintf(out + strlen(out), sizeof out - strlen(out), "%s%s", i ? "," : "", finding_name(f->v[i].id));
    return out;
}

static void a_host_by_itself_is_judged(void **state)
{
    static const struct {
        const char *differs, *found, *says;
    } cases[] = {
        {"{}", "", NULL},
        {"{\"kernel\":\"5.3.0\"}", "", NULL},
        {"{\"kernel\":\"10.0\"}", "", NULL},
        {"{\"kernel\":\"4.19.0-27-amd64\",\"pidfd\":0}", "kernel", "Linux 4.19.0-27-amd64: crun needs 5.3 or newer"},
        {"{\"kernel\":\"5.2.21\"}", "kernel", "5.2.21"},
        {"{\"pidfd\":0}", "kernel", "pidfd_open(2) is refused there"},
        {"{\"proc\":0}", "proc", "/proc"},
        {"{\"files\":256}", "files", "only 256 files: expected 1024"},
        {"{\"files\":-1}", "", NULL},
        {"{\"processes\":100}", "processes", "only 100 processes"},
        {"{\"hcas\":[{\"name\":\"mlx5_0:1\",\"active\":true}]}", "locked-memory", "only 8192 KiB"},
        {"{\"hcas\":[{\"name\":\"mlx5_0:1\",\"active\":true}],\"locked\":-1}", "", NULL},
        {"{\"address_space\":4294967296}", "address-space", "4096 MiB"},
        {"{\"memory\":536870912,\"memory_group\":\"/sys/fs/cgroup/a\"}", "memory",
         "/sys/fs/cgroup/a may use only 512 MiB of memory: expected 4096 for 4 workers"},
        {"{\"memory\":4294967296}", "", NULL},
        {"{\"tasks\":100,\"tasks_group\":\"/g\"}", "tasks", "only 100 processes and threads: expected 512"},
        {"{\"cores\":3}", "cores", "3 CPUs may be used for 4 workers"},
        {"{\"shm\":67108864}", "shm", "only 64 MiB"},
        {"{\"tmp_error\":\"/tmp: No space left on device\"}", "tmp", "No space left"},
        {"{\"oom_group\":\"/g\"}", "oom-group", "set in /g"},
        {"{\"python_error\":\"it says nothing within 25 s\"}", "python", "/usr/bin/python3 (PATH) does not run"},
        {"{\"python\":\"\",\"python_version\":\"\",\"python_error\":\"not found\"}", "", NULL}, /* C needs none */
        {"{\"python\":\"\",\"python_from\":\"PYTHON_EXEC\",\"python_error\":\"PYTHON_EXEC names no Python: x\"}",
         "python", "PYTHON_EXEC names no Python: x"},
        {"{\"foreign_crun\":\"/usr/bin/crun\",\"foreign_says\":\"crun version 1.8.1\"}", "foreign-crun",
         "/usr/bin/crun, another program ('crun version 1.8.1')"},
        {"{\"foreign_module\":\"/x/crun.py\"}", "foreign-module", "/x/crun.py"},
        {"{\"token_error\":\"mode 644\"}", "token", "mode 644"},
        {"{\"folder_error\":\"/job: No such file or directory\"}", "folder", "/job"},
        {"{\"pci_gpus\":8,\"gpus\":7}", "gpu", "8 NVIDIA GPUs are on its PCI bus, but the driver names 7"},
        {"{\"pci_gpus\":1,\"gpus\":1,\"gpu_error\":\"libnvidia-ml.so.1 is not there\"}", "gpu", "libnvidia-ml"},
        {"{\"nics\":[{\"name\":\"eth1\",\"up\":false,\"compare\":true,\"mtu\":1500}]}", "", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct facts f = machine(cases[i].differs);
        struct findings found = {0};
        judge_host(&(struct judged){.host = "node1", .facts = &f, .workers = 4}, NULL, &found);
        assert_string_equal(names_of(&found), cases[i].found);
        if (cases[i].says)
            assert_non_null(strstr(found.v[0].text, cases[i].says));
        findings_free(&found);
    }
}

static void the_interface_that_was_named_is_looked_at(void **state)
{
    struct facts f = machine("{\"nics\":[{\"name\":\"eth1\",\"up\":false},{\"name\":\"eth0\",\"up\":true}]}");
    const struct judged h = {.host = "node1", .facts = &f, .workers = 1};
    struct findings found = {0};
    judge_host(&h, "eth0", &found);
    assert_int_equal(found.n, 0);
    judge_host(&h, "eth1", &found);
    judge_host(&h, "ib0", &found);
    assert_string_equal(found.v[0].text, "node1: its network interface eth1 is down");
    assert_string_equal(found.v[1].text, "node1: there is no network interface ib0");
    findings_free(&found);
}

static void hosts_are_compared_with_the_first(void **state)
{
    static const struct {
        const char *first, *second, *found, *says;
    } cases[] = {
        {"{}", "{}", "", NULL},
        {"{}", "{\"version\":\"1.0.1\"}", "version", "its crun is of version 1.0.1, that of a 1.0.0"},
        {"{}", "{\"python_version\":\"3.9.2\"}", "python", "its Python is 3.9.2 (/usr/bin/python3, by PATH)"},
        {"{}", "{\"python\":\"\",\"python_version\":\"\"}", "python",
         "no Python is found there, but /usr/bin/python3 on a"},
        {"{\"torch\":\"2.15.0\"}", "{\"torch\":\"2.4.1\"}", "torch", "has PyTorch 2.4.1, that of a PyTorch 2.15.0"},
        {"{\"torch\":\"2.15.0\"}", "{}", "torch", "has no PyTorch, that of a PyTorch 2.15.0"},
        {"{\"token\":\"aa\"}", "{\"token\":\"aa\"}", "", NULL},
        {"{\"token\":\"aa\"}", "{\"token\":\"bb\"}", "token", "another one than that of a"},
        {"{\"token\":\"aa\"}", "{}", "token", "it has no token, and a has one"},
        {"{\"token\":\"aa\"}", "{\"token_error\":\"mode\"}", "", NULL}, /* said once, of the host itself */
        {"{\"gpus\":8}", "{\"gpus\":4}", "gpu", "its driver names 4 GPUs, that of a 8"},
        {"{\"gpus\":8,\"gpu\":\"H200\"}", "{\"gpus\":8,\"gpu\":\"H100\"}", "gpu", "its GPUs are H100, those of a H200"},
        {"{}", "{\"own_name\":\"host 'n': Name or service not known\"}", "name", "its own name is not known to it"},
        {"{\"torch\":\"2.15.0\"}", "{\"torch\":\"2.15.0\",\"name\":\"n2\",\"own_addr\":\"127.0.1.1\"}", "own-address",
         "b: its own name n2 stands for 127.0.1.1, where PyTorch's Gloo would wait for other hosts"},
        {"{}", "{\"own_addr\":\"127.0.1.1\"}", "", NULL}, /* no PyTorch */
        {"{\"nics\":[{\"name\":\"eth1\",\"up\":true,\"compare\":true}]}",
         "{\"nics\":[{\"name\":\"eth1\",\"up\":false,\"compare\":true}]}", "nic",
         "b: its network interface eth1 is down, that of a is up"},
        {"{\"nics\":[{\"name\":\"eth1\",\"up\":false,\"compare\":true}]}",
         "{\"nics\":[{\"name\":\"eth1\",\"up\":true,\"compare\":true}]}", "nic",
         "a: its network interface eth1 is down"},
        {"{\"nics\":[{\"name\":\"docker0\",\"up\":true}]}", "{\"nics\":[{\"name\":\"docker0\",\"up\":false}]}", "",
         NULL},
        {"{\"hcas\":[{\"name\":\"mlx5_0:1\",\"active\":true}]}",
         "{\"hcas\":[{\"name\":\"mlx5_0:1\",\"active\":false}]}", "nic",
         "b: port mlx5_0:1 of its RDMA adapter is not active"},
        {"{\"hcas\":[{\"name\":\"mlx5_0:1\",\"active\":false}]}",
         "{\"hcas\":[{\"name\":\"mlx5_0:1\",\"active\":false}]}", "", NULL}, /* nobody uses them */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct facts a = machine(cases[i].first), b = machine(cases[i].second);
        struct findings found = {0};
        judge_hosts((struct judged[]){{"a", &a, 1, 0, 100}, {"b", &b, 1, 0, 100}}, 2, &found);
        assert_string_equal(names_of(&found), cases[i].found);
        if (cases[i].says)
            assert_non_null(strstr(found.v[0].text, cases[i].says));
        findings_free(&found);
    }
}

static void clocks_differ_only_by_more_than_was_measured(void **state)
{
    static const struct {
        int64_t ahead, within;
        const char *says;
    } cases[] = {
        {400000, 100, NULL},
        {2500000, 100, "b: its clock is 2.5 s ahead of that of a"},
        {-90000000, 100, "b: its clock is 90.0 s behind that of a"},
        {2500000, 2400000, NULL}, /* a slow connection */
        {2500000, -1, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct facts f = machine("{}");
        struct findings found = {0};
        judge_hosts((struct judged[]){{"a", &f, 1, 0, 50}, {"b", &f, 1, cases[i].ahead, cases[i].within}}, 2, &found);
        assert_int_equal(found.n, cases[i].says ? 1 : 0);
        if (cases[i].says)
            assert_string_equal(found.v[0].text, cases[i].says);
        findings_free(&found);
    }
}

static void connections_are_judged(void **state)
{
    static const struct {
        struct probe p, back;
        const char *says;
    } cases[] = {
        {{.state = PROBE_OK, .iface = "eth0", .mtu = 1500}, {.state = PROBE_OK, .mtu = 1500}, NULL},
        {{.state = PROBE_OK, .iface = "eth0", .mtu = 1500},
         {.state = PROBE_OK, .iface = "ens3", .mtu = 9000},
         "a: the MTU of its eth0 is 1500, that of b's ens3 is 9000"},
        {{.state = PROBE_OK, .mtu = 9000}, {.state = PROBE_OK, .mtu = 1500}, NULL}, /* said the other way round */
        {{.state = PROBE_UNRESOLVED, .text = "host 'b': Name or service not known"},
         {.state = PROBE_OK},
         "a: it does not know the name of b: host 'b': Name or service not known"},
        {{.state = PROBE_CLOSED, .text = "connect: No route to host"},
         {.state = PROBE_OK},
         "a: it cannot connect to b: connect: No route to host"},
        {{.state = PROBE_STUCK, .iface = "eth0", .mtu = 1500, .passes = 1300},
         {.state = PROBE_OK},
         "a: large packets to or from b are lost: the MTU of eth0 is 1500, but only packets of up to 1300 bytes get "
         "through"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct findings found = {0};
        judge_link("a", "b", &cases[i].p, &cases[i].back, &found);
        assert_int_equal(found.n, cases[i].says ? 1 : 0);
        if (cases[i].says)
            assert_string_equal(found.v[0].text, cases[i].says);
        findings_free(&found);
    }
}

static void what_a_host_says_moves_no_cursor(void **state)
{
    struct findings found = {0};
    findings_add(&found, FINDING_PYTHON, "n\033[2Jode", "it says \a%s", "a\nb");
    assert_string_equal(found.v[0].text, "n?[2Jode: it says ?a?b");
    findings_free(&found);
}

static void facts_survive_the_way(void **state)
{
    struct facts f = machine("{\"nics\":[{\"name\":\"eth1\",\"up\":true,\"compare\":true,\"mtu\":9000}],"
                             "\"hcas\":[{\"name\":\"mlx5_0:1\",\"active\":true}],\"memory\":1125899906842624}"),
                 back;
    cJSON *o = facts_to_json(&f);
    facts_from_json(o, &back);
    cJSON_Delete(o);
    assert_memory_equal(&f, &back, sizeof f);
    facts_from_json(NULL, &back);
    assert_string_equal(back.kernel, "");
    assert_int_equal(back.memory, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_host_by_itself_is_judged),
        cmocka_unit_test(the_interface_that_was_named_is_looked_at),
        cmocka_unit_test(hosts_are_compared_with_the_first),
        cmocka_unit_test(clocks_differ_only_by_more_than_was_measured),
        cmocka_unit_test(connections_are_judged),
        cmocka_unit_test(what_a_host_says_moves_no_cursor),
        cmocka_unit_test(facts_survive_the_way),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

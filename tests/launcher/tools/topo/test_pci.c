/* Distances between PCI devices, and the adapters of a made-up sysfs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/tools/topo/pci.h"
#include "launcher/tools/topo/topo_devices.h"

#define ROOT "/sys/devices/pci0000:00"

static void distances_are_named_as_nvidia_smi_names_them(void **state)
{
    static const struct {
        const char *a, *b;
        int a_node, b_node;
        const char *expected;
    } cases[] = {
        {ROOT "/0000:00:01.0/0000:01:00.0", ROOT "/0000:00:01.0/0000:01:00.1", 0, 0,
         "PIX"}, /* two ports of one adapter */
        {ROOT "/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0",
         ROOT "/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0", 0, 0, "PIX"}, /* one switch */
        {ROOT "/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0/0000:04:00.0/0000:05:00.0",
         ROOT "/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:06:00.0", 0, 0, "PXB"}, /* a switch below a switch */
        {ROOT "/0000:00:01.0/0000:01:00.0", ROOT "/0000:00:02.0/0000:02:00.0", 0, 0, "PHB"},
        {ROOT "/0000:00:03.0", ROOT "/0000:00:04.0", -1, -1, "PHB"},
        {ROOT "/0000:00:01.0/0000:01:00.0", "/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0", 0, 0, "NODE"},
        {ROOT "/0000:00:01.0/0000:01:00.0", "/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0", 0, 1, "SYS"},
        {ROOT "/0000:00:01.0/0000:01:00.0", ROOT "/0000:00:01.1/0000:01:00.0", 0, 0, "PHB"}, /* alike is not the same */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *there = pci_distance_name(pci_distance(cases[i].a, cases[i].a_node, cases[i].b, cases[i].b_node));
        const char *back = pci_distance_name(pci_distance(cases[i].b, cases[i].b_node, cases[i].a, cases[i].a_node));
        assert_string_equal(there, cases[i].expected);
        assert_string_equal(back, cases[i].expected);
    }
}

static char root[64];

static void run(const char *command)
{
    assert_int_equal(system(command), 0);
}

static void add_nic(const char *name, const char *pci, const char *node)
{
    char command[1024];
    snprintf(command, sizeof command,
             "cd %s && mkdir -p devices/%s class/infiniband/%s && echo %s > devices/%s/numa_node && "
             "ln -s $PWD/devices/%s class/infiniband/%s/device",
             root, pci, name, node, pci, pci, name);
    run(command);
}

static void adapters_come_in_the_order_of_their_numbers(void **state)
{
    static struct topo_devices d;
    char text[32];
    strcpy(root, "/tmp/test-pci-XXXXXX");
    assert_non_null(mkdtemp(root));
    add_nic("mlx5_10", "pci0000:80/0000:80:01.0/0000:81:00.0", "1");
    add_nic("mlx5_2", "pci0000:00/0000:00:01.0/0000:01:00.0", "0");
    add_nic("mlx5_3", "pci0000:00/0000:00:01.0/0000:01:00.1", "0");
    topo_devices_find(&d, root);
    const int first = d.n_gpus; /* of the machine that tests */
    assert_int_equal(d.n - first, 3);
    assert_string_equal(d.v[first].label, "NIC0");
    assert_string_equal(d.v[first].name, "mlx5_2");
    assert_string_equal(d.v[first + 2].name, "mlx5_10");
    assert_int_equal(d.v[first + 2].numa_node, 1);
    assert_string_equal(topo_devices_relation(&d, first, first + 1, text, sizeof text), "PIX");
    assert_string_equal(topo_devices_relation(&d, first, first + 2, text, sizeof text), "SYS");
    assert_string_equal(topo_devices_relation(&d, first, first, text, sizeof text), "X");
    char command[96];
    snprintf(command, sizeof command, "rm -r %s", root);
    run(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distances_are_named_as_nvidia_smi_names_them),
        cmocka_unit_test(adapters_come_in_the_order_of_their_numbers),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("pci", tests, NULL, NULL);
}

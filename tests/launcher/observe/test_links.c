/* Links of a machine: which count, and what is told of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/observe/links.h"
#include "launcher/place/gpus.h"

static void told(struct links *l, int64_t ms, const char *text, bool down, int64_t since_ms)
{
    struct gauges_link told;
    assert_true(links_tell(l, ms, &told));
    assert_string_equal(told.text, text);
    assert_int_equal(told.down, down);
    assert_int_equal(told.ms, since_ms);
}

static void nothing_told(struct links *l, int64_t ms)
{
    struct gauges_link unused;
    assert_false(links_tell(l, ms, &unused));
}

static void a_link_that_was_up_and_goes_down_is_told(void **state)
{
    struct links l = {0};
    (void)state;
    nothing_told(&l, 1);
    for (int ms = 1; ms < 3; ms++) { /* the first look and one like it */
        links_see(&l, ms, "a", true, 2);
        links_see(&l, ms, "b", false, 0);
        links_see(&l, ms, "c", true, -1);
        nothing_told(&l, ms);
    }
    links_see(&l, 3, "d", true, 0); /* one that appears later */
    links_see(&l, 3, "a", true, -1);
    nothing_told(&l, 3);
    links_see(&l, 4, "a", false, 3);
    links_see(&l, 4, "d", false, 0);
    told(&l, 4, "a went down", true, 4);
    nothing_told(&l, 5);
    links_see(&l, 6, "c", false, -1);
    told(&l, 6, "c went down, as did 1 other link", true, 6);
    links_see(&l, 7, "c", true, -1);
    told(&l, 7, "a went down", true, 4);
    links_see(&l, 8, "a", true, 4);
    told(&l, 8, "a went down and came back, as did 1 other link", false, 8);
    links_see(&l, 9, "b", true, 1); /* up for the first time */
    nothing_told(&l, 9);
    links_see(&l, 10, "b", true, 3); /* and down between two looks */
    told(&l, 10, "b went down and came back, as did 2 other links", false, 10);
}

static void put(const char *root, const char *path, const char *text)
{
    char name[512], *slash;
    snprintf(name, sizeof name, "%s/%s", root, path);
    for (slash = name + strlen(root); (slash = strchr(slash + 1, '/'));) {
        *slash = '\0';
        mkdir(name, 0700);
        *slash = '/';
    }
    FILE *f = fopen(name, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void adapters_are_those_of_devices_and_ports_of_infiniband(void **state)
{
    char root[] = "/tmp/links-XXXXXX", command[128];
    struct links *l = calloc(1, sizeof *l);
    (void)state;
    assert_non_null(mkdtemp(root));
    put(root, "sys/class/net/lo/operstate", "unknown\n");
    put(root, "sys/class/net/bonding_masters", "\n");
    put(root, "sys/class/net/eth0/operstate", "up\n");
    put(root, "sys/class/net/eth0/carrier_changes", "2\n");
    links_look_at_adapters(l, 1, root); /* as in a container: none has a device */
    nothing_told(l, 1);
    assert_int_equal(l->n, 1);
    put(root, "sys/class/net/ib0/operstate", "up\n");
    put(root, "sys/class/net/ib0/device/vendor", "0x15b3\n");
    put(root, "sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
    put(root, "sys/class/infiniband/mlx5_0/ports/1/counters/link_downed", "0\n");
    *l = (struct links){0};
    links_look_at_adapters(l, 2, root);
    nothing_told(l, 2);
    assert_int_equal(l->n, 2);
    put(root, "sys/class/net/eth0/operstate", "down\n");
    put(root, "sys/class/infiniband/mlx5_0/ports/1/counters/link_downed", "1\n");
    links_look_at_adapters(l, 3, root);
    told(l, 3, "port 1 of mlx5_0 went down and came back", false, 3);
    put(root, "sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
    put(root, "sys/class/net/ib0/operstate", "lowerlayerdown\n");
    links_look_at_adapters(l, 4, root);
    told(l, 4, "ib0 went down, as did 1 other link", true, 4);
    put(root, "sys/class/net/ib0/operstate", "up\n");
    put(root, "sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
    links_look_at_adapters(l, 5, root);
    told(l, 5, "ib0 went down and came back, as did 1 other link", false, 5);
    snprintf(command, sizeof command, "rm -r %s/sys/class/net/ib0", root); /* ip link del */
    assert_int_equal(system(command), 0);
    links_look_at_adapters(l, 6, root);
    told(l, 6, "ib0 went down", true, 6);
    links_look_at_adapters(l, 7, root);
    nothing_told(l, 7);
    snprintf(command, sizeof command, "rm -r %s/sys/class/infiniband", root);
    assert_int_equal(system(command), 0);
    links_look_at_adapters(l, 8, root);
    told(l, 8, "port 1 of mlx5_0 went down, as did 1 other link", true, 8);
    snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);
    free(l);
}

static int active = 3; /* links of the GPU: a bit each */
static unsigned long long recoveries;

static int state_of(nvml_device d, unsigned link, int *ret)
{
    *ret = active >> link & 1;
    return link < 3 ? NVML_SUCCESS : 2;
}

static int errors_of(nvml_device d, unsigned link, unsigned counter, unsigned long long *ret)
{
    *ret = recoveries;
    return link == 0 && counter == NVML_RECOVERIES ? NVML_SUCCESS : 3;
}

static void nvlinks_are_told_with_their_gpu(void **state)
{
    const struct nvml_lib lib = {.nvmlDeviceGetNvLinkState = state_of, .nvmlDeviceGetNvLinkErrorCounter = errors_of};
    const struct gpu gpus[] = {{.pci = "0000:3b:00.0", .device = (nvml_device)(uintptr_t)1}, {.pci = "by /proc alone"}};
    struct links *l = calloc(1, sizeof *l);
    (void)state;
    links_look_at_nvlinks(l, 1, &lib, gpus, 2);
    nothing_told(l, 1);
    assert_int_equal(l->n, 3);
    recoveries = 2;
    links_look_at_nvlinks(l, 2, &lib, gpus, 2);
    told(l, 2, "NVLink 0 of 0000:3b:00.0 went down and came back", false, 2);
    active = 1;
    links_look_at_nvlinks(l, 3, &lib, gpus, 2);
    told(l, 3, "NVLink 1 of 0000:3b:00.0 went down", true, 3);
    free(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_link_that_was_up_and_goes_down_is_told),
        cmocka_unit_test(adapters_are_those_of_devices_and_ports_of_infiniband),
        cmocka_unit_test(nvlinks_are_told_with_their_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

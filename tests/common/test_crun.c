/* libcrun with a real page: a memfd and an eventfd, as the launcher makes them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/crun_page.h"
#include "common/err.h"
#include "common/failure_record.h"
#include "common/include/crun.h"

static int page_fd = -1, notify_fd = -1;
static struct crun_page *page;
static struct crun_info info;

static int make_page(void **state)
{
    char text[16];
    page_fd = memfd_create("page", 0);
    notify_fd = eventfd(0, EFD_NONBLOCK);
    if (page_fd < 0 || notify_fd < 0 || ftruncate(page_fd, CRUN_PAGE_BYTES) < 0)
        return -1;
    page = mmap(NULL, CRUN_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, page_fd, 0);
    page->magic = CRUN_PAGE_MAGIC;
    page->version = CRUN_PAGE_VERSION;
    page->notify_fd = notify_fd;
    snprintf(text, sizeof text, "%d", page_fd);
    setenv("CRUN_PAGE_FD", text, 1);
    return 0;
}

static int free_page(void **state)
{
    crun_finish();
    munmap(page, CRUN_PAGE_BYTES);
    close(page_fd);
    close(notify_fd);
    unsetenv("CRUN_PAGE_FD");
    return 0;
}

static void everything_works_without_crun(void **state)
{
    unsetenv("CRUN_PAGE_FD");
    assert_int_equal(crun_init(&info), 0);
    assert_int_equal(info.rank, 0);
    assert_int_equal(info.world_size, 1);
    assert_string_equal(info.store, "");
    assert_string_equal(info.run_id, "");
    crun_progress(1);
    assert_int_equal(crun_stop_reason(), CRUN_STOP_NONE);
    crun_record_error(1, "x");
    crun_finish();
    crun_finish();
}

static void the_environment_is_handed_over(void **state)
{
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("CRUN_ROUND", "5", 1);
    setenv("CRUN_STORE", "resp://h:1", 1);
    setenv("TORCHELASTIC_RUN_ID", "j1", 1);
    assert_int_equal(crun_init(&info), 0);
    setenv("CRUN_STORE", "changed", 1);
    assert_int_equal(info.rank, 1);
    assert_int_equal(info.world_size, 2);
    assert_int_equal(info.round, 5);
    assert_string_equal(info.store, "resp://h:1");
    assert_string_equal(info.run_id, "j1");
    setenv("RANK", "2", 1);
    assert_int_equal(crun_init(&info), -EINVAL);
    static const char *const names[] = {"RANK", "WORLD_SIZE", "CRUN_ROUND", "CRUN_STORE", "TORCHELASTIC_RUN_ID"};
    for (size_t i = 0; i < 5; i++)
        unsetenv(names[i]);
}

static void progress_is_seen_and_the_first_one_wakes_the_launcher(void **state)
{
    uint64_t wakes = 0;
    assert_int_equal(page->attached, 0);
    assert_int_equal(crun_init(&info), 0);
    assert_int_equal(page->attached, 1);
    int64_t before = clock_ns();
    assert_int_equal(read(notify_fd, &wakes, 8), -1);
    for (uint64_t step = 7; step < 10; step++)
        crun_progress(step);
    assert_int_equal(page->step, 9);
    assert_int_equal(read(notify_fd, &wakes, 8), 8);
    assert_int_equal(wakes, 1);
    assert_true(page->first_step_ns >= before && page->first_step_ns <= page->last_step_ns);
    assert_true(page->last_step_ns <= clock_ns());
    crun_finish();
    assert_int_equal(page->attached, 0);
}

static void metrics_are_told_as_they_are(void **state)
{
    assert_int_equal(crun_init(&info), 0);
    assert_int_equal(page->has_metrics, 0);
    crun_metrics(310.25, 2.5e-7);
    assert_int_equal(page->has_metrics, 1);
    assert_true(crun_page_real(&page->images_per_s) == 310.25 && crun_page_real(&page->loss) == 2.5e-7);
    crun_finish();
}

static void stop_reasons_arrive_and_have_names(void **state)
{
    assert_int_equal(crun_init(&info), 0);
    assert_int_equal(crun_stop_reason(), CRUN_STOP_NONE);
    page->stop_reason = CRUN_STOP_DRAIN;
    assert_int_equal(crun_stop_reason(), CRUN_STOP_DRAIN);
    page->stop_reason = 77;
    assert_int_equal(crun_stop_reason(), CRUN_STOP_ABORT);
    assert_string_equal(crun_stop_reason_name(CRUN_STOP_RESIZE), "resize");
    assert_string_equal(crun_stop_reason_name((enum crun_stop_reason)77), "unknown");
}

static void the_first_error_is_recorded_in_page_and_file(void **state)
{
    char path[] = "/tmp/test_crun_XXXXXX", longtext[2000];
    struct failure_record r;
    struct err e;
    close(mkstemp(path));
    setenv("TORCHELASTIC_ERROR_FILE", path, 1);
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "2", 1);
    memset(longtext, 'x', sizeof longtext - 1);
    longtext[sizeof longtext - 1] = 0;
    assert_int_equal(crun_init(&info), 0);
    crun_progress(12);
    crun_record_error(65, "no \"classes\"");
    crun_record_error(70, longtext);
    assert_int_equal(page->error_code, 65);
    assert_string_equal(page->error_text, "no \"classes\"");
    assert_int_equal(failure_record_read(path, &r, &e), 0);
    assert_string_equal(r.message, "no \"classes\"");
    assert_int_equal(r.exitcode, 65);
    assert_int_equal(r.rank, 1);
    assert_int_equal(r.step, 12);
    assert_true(r.timestamp > 0);
    assert_int_equal(crun_init(&info), 0);
    crun_record_error(70, longtext);
    assert_int_equal(strlen(page->error_text), sizeof page->error_text - 1);
    unlink(path);
    unsetenv("TORCHELASTIC_ERROR_FILE");
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
}

static void descriptors_are_not_inherited_further(void **state)
{
    assert_int_equal(crun_init(&info), 0);
    assert_true(fcntl(page_fd, F_GETFD) & FD_CLOEXEC);
    assert_true(fcntl(notify_fd, F_GETFD) & FD_CLOEXEC);
}

static void expect_no_page(void)
{
    assert_int_equal(crun_init(&info), 0);
    crun_progress(1);
    crun_metrics(1, 1);
    crun_record_error(1, "x");
    assert_int_equal(crun_stop_reason(), CRUN_STOP_NONE);
}

static void a_garbage_descriptor_means_no_launcher(void **state)
{
    static const char *const garbage[] = {"", "x", "-1", "9999", "0", "1", "99999999999999999999"};
    for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++) {
        setenv("CRUN_PAGE_FD", garbage[i], 1);
        expect_no_page();
    }
}

static void a_page_of_another_kind_is_left_alone(void **state)
{
    struct crun_page before;
    page->stop_reason = CRUN_STOP_ABORT;
    page->magic ^= 1;
    before = *page;
    expect_no_page();
    assert_memory_equal(page, &before, sizeof before);
    page->magic ^= 1;
    page->version = 0;
    expect_no_page();
    page->version = 1;
    assert_int_equal(ftruncate(page_fd, 100), 0);
    expect_no_page();
}

static void the_shared_library_exports_the_api_only(void **state)
{
    const char *path = getenv("LIBCRUN");
    if (!path)
        skip();
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        fail_msg("%s", dlerror());
    static const char *const api[] = {"crun_init",        "crun_finish",           "crun_progress",
                                      "crun_stop_reason", "crun_stop_reason_name", "crun_record_error",
                                      "crun_metrics"};
    for (size_t i = 0; i < sizeof api / sizeof *api; i++)
        assert_non_null(dlsym(lib, api[i]));
    assert_null(dlsym(lib, "env_contract_read"));
    assert_null(dlsym(lib, "err_set"));
    dlclose(lib);
}

int main(void)
{
#define WITH_PAGE(f) cmocka_unit_test_setup_teardown(f, make_page, free_page)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_works_without_crun),
        cmocka_unit_test(the_environment_is_handed_over),
        WITH_PAGE(progress_is_seen_and_the_first_one_wakes_the_launcher),
        WITH_PAGE(metrics_are_told_as_they_are),
        WITH_PAGE(stop_reasons_arrive_and_have_names),
        WITH_PAGE(the_first_error_is_recorded_in_page_and_file),
        WITH_PAGE(descriptors_are_not_inherited_further),
        WITH_PAGE(a_garbage_descriptor_means_no_launcher),
        WITH_PAGE(a_page_of_another_kind_is_left_alone),
        cmocka_unit_test(the_shared_library_exports_the_api_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

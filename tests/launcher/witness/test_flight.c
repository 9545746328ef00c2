/* Calls that PyTorch's Flight Recorder has of several ranks: which one differs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "launcher/witness/flight.h"

#define RANKS 3

/* "name size,name size": collectives 1, 2, ... of one group; "-": no trace; a name that begins with p is a send. */
static cJSON *trace_of(const char *form)
{
    char text[2048] = "{\"entries\":[", copy[256], *save = NULL;
    size_t n = strlen(text);
    int id = 0;
    if (strcmp(form, "-") == 0)
        return NULL;
    snprintf(copy, sizeof copy, "%s", form);
    for (char *word = strtok_r(copy, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
        char name[32], type[16] = "Float";
        int size;
        assert_true(sscanf(word, "%31s %d %15s", name, &size, type) >= 2);
        n += (size_t)snprintf(text + n, sizeof text - n,
                              "%s{\"collective_seq_id\":%d,\"is_p2p\":%s,\"process_group\":[\"0\",\"dp\"],"
                              "\"profiling_name\":\"nccl:%s\",\"input_sizes\":[[%d]],\"input_dtypes\":[\"%s\"]}",
                              id ? "," : "", id + 1, name[0] == 'p' ? "true" : "false", name, size, type);
        id++;
    }
    snprintf(text + n, sizeof text - n, "]}");
    cJSON *tree = cJSON_Parse(text);
    assert_non_null(tree);
    return tree;
}

static const struct {
    const char *calls[RANKS], *text; /* "": all fit together */
} cases[] = {
    {{"all_reduce 4,all_reduce 8", "all_reduce 4,all_reduce 8", "all_reduce 4,all_reduce 8"}, ""},
    {{"all_reduce 4,all_reduce 8", "all_reduce 4,all_reduce 9", "all_reduce 4,all_reduce 8"},
     "rank 1 calls nccl:all_reduce 2 of group dp with [\"Float\"] [[9]]; 2 ranks call nccl:all_reduce with [\"Float\"] [[8]]"},
    {{"all_reduce 9", "all_reduce 4", "all_reduce 4"},
     "rank 0 calls nccl:all_reduce 1 of group dp with [\"Float\"] [[9]]; 2 ranks call nccl:all_reduce with [\"Float\"] [[4]]"},
    {{"all_reduce 4", "all_reduce 4", "all_reduce 4 Half"},
     "rank 2 calls nccl:all_reduce 1 of group dp with [\"Half\"] [[4]]; 2 ranks call nccl:all_reduce with [\"Float\"] [[4]]"},
    {{"all_reduce 4,broadcast 1", "all_reduce 4,broadcast 1", "broadcast 1,all_reduce 4"},
     "rank 2 calls nccl:broadcast 1 of group dp with [\"Float\"] [[1]]; 2 ranks call nccl:all_reduce with [\"Float\"] [[4]]"},
    {{"all_reduce 4", "all_reduce 4,all_reduce 4", "-"}, ""}, /* late, and one that nobody asked */
    {{"all_reduce 4", "-", "all_reduce 5"},
     "rank 2 calls nccl:all_reduce 1 of group dp with [\"Float\"] [[5]]; 1 rank calls nccl:all_reduce with [\"Float\"] [[4]]"},
    {{"all_to_all 4", "all_to_all 8", "all_to_all 2"}, ""}, /* may be uneven */
    {{"pipe 4", "pipe 8", "pipe 2"}, ""},                   /* sends */
    {{"-", "-", "-"}, ""},
};

static void the_first_call_that_differs_is_named(void **state)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct flight_trace v[RANKS];
        char text[320] = "";
        for (int r = 0; r < RANKS; r++)
            v[r] = (struct flight_trace){r, trace_of(cases[i].calls[r])};
        assert_int_equal(flight_mismatch(v, RANKS, text, sizeof text), cases[i].text[0] != 0);
        assert_string_equal(text, cases[i].text);
        for (int r = 0; r < RANKS; r++)
            cJSON_Delete(v[r].tree);
    }
}

static void what_is_no_trace_names_nothing(void **state)
{
    const char *const bad[] = {"[]", "{}", "{\"entries\":3}", "{\"entries\":[1,{},[],{\"process_group\":[]}]}",
                               "{\"entries\":[{\"collective_seq_id\":1,\"process_group\":[\"\\u001b[31m\"]}]}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[320] = "";
        struct flight_trace v[2] = {{0, cJSON_Parse(bad[i])}, {1, cJSON_Parse(bad[i])}};
        assert_false(flight_mismatch(v, 2, text, sizeof text));
        cJSON_Delete(v[0].tree);
        cJSON_Delete(v[1].tree);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_call_that_differs_is_named),
        cmocka_unit_test(what_is_no_trace_names_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

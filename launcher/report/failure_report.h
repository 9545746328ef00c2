/* Makes the failure report of a job: printed once, when the job has failed and no worker of this node is left.
 *
 * How data flows: the agent opens a report with what does not change, and calls with a struct failure_scene, the
 * state of the job at that moment. For each worker that failed, failure_report.c asks for what is known of it (error
 * record, core, GPU, last lines of stderr) and makes a JSON object of that (failure.h). failure_share.c sends the
 * objects of a node to group rank 0, which sorts those of all nodes, prints one report, and has the same written to
 * failure.json (failure_files.h). A node that cannot reach group rank 0 reports for itself. Loop thread only. */
#ifndef CRUN_LAUNCHER_FAILURE_REPORT_H
#define CRUN_LAUNCHER_FAILURE_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

struct causes_machine;
struct crun_page;
struct endpoint;
struct err;
struct failure_report;
struct failure_worker;
struct log_layout;
struct logmux;
struct oom_kills;
struct rdzv_news;

/* ms for the output process to send last words of this node's workers; otherwise the report says that they are
 * missing. */
#define FAILURE_WORDS_MS 1000
#define FAILURE_OUTPUT_MAX 160

struct failure_report_options { /* all of it is borrowed */
    uv_loop_t *loop;
    struct logmux *mux;            /* prints the report; has the last lines of workers */
    const struct log_layout *logs; /* whose root takes failure.json */
    const char *failure_file;      /* takes it too; NULL: not asked for */
    const char *error_file;        /* error file of crun itself, if another launcher started it; NULL: none did */
    const char *run_id, *node, *host;
    const char *program, *program_path; /* what the user typed; the file that was found */
    int max_restarts;
    double restart_window;       /* seconds; 0: all restarts count */
    const struct oom_kills *oom; /* of the workers */
    const bool *hurry;           /* true after a stop signal: wait for no other node */
    /* callbacks about a failed worker; NULL: not known */
    const char *(*error_path)(void *arg, int local);       /* where its error record would be */
    const char *(*error_text)(void *arg, int local);       /* what it reported through libcrun */
    const struct crun_page *(*page)(void *arg, int local); /* shared with it */
    const char *(*hang_text)(void *arg);                   /* of the hang that ended the round */
    /* The output process and its state, for people; returns out. */
    const char *(*output_text)(void *arg, char out[FAILURE_OUTPUT_MAX]);
    struct causes_machine (*machine)(void *arg);
    /* The address where group rank 0 of a round serves its store; on group rank 0: begin to serve. */
    void (*find_leader)(void *arg, const struct rdzv_news *news, struct endpoint *ret);
    int (*serve)(void *arg, const struct rdzv_news *news, struct err *e);
    /* Other nodes of the round that can still be heard; -1: not known here. */
    int (*reached)(void *arg);
    /* On group rank 0, after printing: failure_json_short() of RDZV_FAILURE_MAX bytes, for a status page. */
    void (*publish)(void *arg, const char *text);
    void *arg;
};

/* What the agent knows now. */
struct failure_scene {
    const struct rdzv_news *round; /* the newest round that this node was in, zeroed: none */
    const struct rdzv_news *end;   /* the job's END, zeroed: it is not over */
    const struct failure_worker *workers;
    int n, live;    /* workers; those that still run */
    bool unstarted; /* the workers could not be started, and that has been printed */
    /* the rendezvous refuses this node, and that has been printed; read at the end, so a pointer */
    const bool *refused;
    int exit_code;
};

int failure_report_open(struct failure_report **ret, const struct failure_report_options *o, struct err *e);

/* A round with so many nodes begins: forget reports of the one before. */
void failure_report_begin_round(struct failure_report *f, int nodes);

/* A worker has ended, or hangs: if that is a failure, ask for its last words while there is time. */
void failure_report_note(struct failure_report *f, const struct failure_worker *w);

/* Was a worker that died of SIGKILL killed because memory ran out? (causes_is_oom()) */
bool failure_report_is_oom(struct failure_report *f, const struct failure_worker *w, const struct failure_worker *all,
                           int n);

/* A worker has just been killed because memory ran out: note how much memory these workers hold. */
void failure_report_note_memory(struct failure_report *f, const struct failure_worker *all, int n);

/* On group rank 0: another node sent its failures (struct bootstrap_options.failure). arg: the report. */
int failure_report_receive(void *arg, const char *node, const char *text, size_t n);

/* The job has failed while workers of this node are being stopped: send what is known so far to group rank 0. */
void failure_report_send_early(struct failure_report *f, const struct failure_scene *now);

/* No worker is left: print the report or, on other nodes than group rank 0, one line. Runs the loop, for
 * FAILURE_WORDS_MS and FAILURE_SHARE_MS at most, or until *hurry. */
void failure_report_finish(struct failure_report *f, const struct failure_scene *now);

void failure_report_close(struct failure_report *f); /* NULL allowed; the loop must turn once more */

#endif

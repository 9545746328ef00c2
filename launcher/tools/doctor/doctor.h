/* `crun doctor [options] [RUN]`: finds what would keep these hosts from running a job; one sentence each, with its
 * remedy.
 *
 * The room doctor/ is for that command. How data flows: doctor.c reads the options and decides which hosts to examine:
 * this machine, those of -H or --hostfile, or the nodes of a job at a rendezvous (place.c). doctor_host.c starts `crun
 * doctor-agent` on each as crun -H starts agents; doctor_agent.c there looks at its machine (facts.h), listens and
 * dials (probe.h). examine.c asks all of them, and judge.c makes findings from what hosts report of themselves and of
 * their connections.
 *
 * No secret leaves a host, and nothing is changed, except for a file in --shared-dir that is removed again. */
#ifndef CRUN_LAUNCHER_DOCTOR_H
#define CRUN_LAUNCHER_DOCTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "common/args/args.h"
#include "launcher/tools/doctor/doctor_host.h"
#include "launcher/tools/doctor/facts.h"
#include "launcher/tools/doctor/findings.h"

struct rdzv_ask;

extern const struct arg_program doctor_program;

/* argv[0] is "doctor". Returns the exit code: 0: nothing was found; 1: something was. Blocks for some seconds,
 * longer if hosts do not answer (--timeout). */
int doctor_main(int argc, char **argv);

struct doctor_config {
    const char *hosts, *hostfile, *rsh, *remote_crun, *iface, *shared_dir;
    const char *endpoint, *token_file, *ca;
    int64_t workers; /* of each host that says no number */
    double timeout_s;
    bool tls, json;
};

struct doctor {
    struct doctor_config config;
    const char *run; /* NULL: none was named */
    struct hosts hosts;
    bool named; /* the user named the hosts; false: they are a job's, or only this machine */
    struct remote_shell shell;
    struct doctor_host *at; /* hosts.n of them */
    struct facts *facts;    /* of each */
    int64_t *ahead_us, *within_us;
    const char **labels; /* what each is called */
    struct findings found;
    char place_host[256]; /* of the rendezvous, "": none */
    int place_port;
    const char *shared_dir; /* NULL: none */
};

/* place.c: look at the rendezvous from here, and add the nodes of the run, if one was given, to d->hosts. ERR_USAGE. */
int doctor_look_at_place(struct doctor *d, struct err *e);

/* examine.c: collect facts, clocks, connections and folders of all hosts in d->facts and findings. */
int doctor_examine(struct doctor *d, struct err *e);

#endif

/* -H and --hostfile: this crun starts an agent on each host by ssh (or whatever --rsh names), and is no agent itself.
 *
 * How data flows: hosts.c reads who is named, remote_plan.c makes of it one order for each host, remote.c starts the
 * connections and decides when the job is over. remote_control.c writes to an agent (its order, then signals),
 * remote_stream.c reads its output; the words of both are remote_wire.h. On the other host remote_agent.c takes the
 * order, and is crun as any other from then on.
 *
 *   - each agent gets its order on the standard input of its ssh (remote_wire.h): folder, options, variables, the job's
 *     secret;
 *   - they meet at the first host unless a rendezvous was named; node ranks follow the list;
 *   - their output comes back line by line, with the prefixes they gave it;
 *   - signals are passed on; the end of the connection, whatever ended it, stops the agent there;
 *   - a host where nothing begins, at the latest when join_timeout is over or the job is, is reported in one sentence;
 *     where too few are left for --nnodes, the others are stopped;
 *   - the exit code is the job's: that of the agent that ended last.
 * An agent on this host is started without ssh. */
#ifndef CRUN_LAUNCHER_REMOTE_H
#define CRUN_LAUNCHER_REMOTE_H

#include <stdio.h>

struct config;
struct err;
struct guardian_link;

/* argv: the command line as config_read() left it; its operands begin at first_operand. Returns 0 with the exit code,
 * or ERR_USAGE and the like. */
int remote_run(const struct config *c, const struct guardian_link *link, int argc, char **argv, int first_operand,
               int *ret_code, struct err *e);

/* --dry-run: who would be started how. */
int remote_print_plan(const struct config *c, int argc, char **argv, int first_operand, FILE *out, struct err *e);

#endif

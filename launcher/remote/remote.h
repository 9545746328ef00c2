/* -H and --hostfile: this crun starts an agent on each host by ssh (or what --rsh names), and is not an agent itself.
 *
 * How data flows: hosts.c parses the hosts, remote_plan.c makes one order for each, remote.c starts the connections and
 * decides when the job is over. remote_control.c writes to an agent (its order, then signals), remote_stream.c reads
 * its output; the words of both are remote_wire.h. On the other host remote_agent.c reads the order, and continues as
 * an ordinary crun.
 *
 *   - each agent gets its order on the standard input of its ssh (remote_wire.h): folder, options, variables, the job's
 *     secret;
 *   - they meet at the first host unless a rendezvous was named; node ranks follow the list;
 *   - their output comes back line by line, with the prefixes that they added;
 *   - signals are forwarded; the end of the connection, for any reason, stops the agent there;
 *   - a host on which no agent begins until join_timeout or the job's end is reported in one sentence; if too few hosts
 *     are left for --nnodes, the others are stopped;
 *   - the exit code is the job's: that of the agent that ended last.
 * An agent on this host is started without ssh. */
#ifndef CRUN_LAUNCHER_REMOTE_H
#define CRUN_LAUNCHER_REMOTE_H

#include <stdio.h>

struct config;
struct err;
struct guardian_link;

/* argv: the command line as config_read() reordered it; its operands begin at first_operand. Returns 0 with the exit
 * code, or ERR_USAGE and the like. */
int remote_run(const struct config *c, const struct guardian_link *link, int argc, char **argv, int first_operand,
               int *ret_code, struct err *e);

/* --dry-run: who would be started how. */
int remote_print_plan(const struct config *c, int argc, char **argv, int first_operand, FILE *out, struct err *e);

#endif

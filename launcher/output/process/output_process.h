/* Workers' output in a process of its own, so that no disk and no console can reach the lease, a signal or an exit.
 *
 *     guardian ──starts──► output process ◄──messages, pipes── agent          (output_wire.h)
 *                             │ the loop's thread: pipes ─► lines ─► consoles           (streams.h)
 *                             └ one for each disk: log files; event log; records and reports; preemption file
 *                               (file_thread.h); standard streams that are files, shared folders (apart_jobs.c)
 *
 * Who holds what. The agent makes the pipes of a round, hands their read ends over, and keeps duplicates of them until
 * it is notified that the round is read to its end. So a process that is killed costs what it had in its memory, but no
 * worker gets EPIPE, and lines go on through the next process, which the guardian starts at once: it says hello, and
 * the agent sends it all it has to know. What was lost is reported: the page they share counts what is on its way.
 *
 * What is dropped. Lines on consoles never, as long as somebody may read them: workers wait. For files see
 * file_thread.h. crun's own texts go through here, to be in order with the workers' lines; what has not been taken
 * within OWN_TEXTS_MS the agent writes itself (output_claim() settles who does).
 *
 * Deaths.
 *   - this process: as above;
 *   - the agent: its workers die with it. What they wrote is read until end-of-file or until the guardian says that
 *     nobody is left, then written out, as far as that takes no longer than OUTPUT_LAST_MS;
 *   - the guardian: the agent ends the tree and goes; then as with the agent's death;
 *   - both: likewise, OUTPUT_ALONE_MS after that at the latest.
 * In good order the agent says that nothing more will come (OUTPUT_FLUSH), waits, and goes. The guardian then waits
 * GUARDIAN_OUTPUT_MS for this process, kills it, and names it where a disk holds it in the kernel even then. It ignores
 * all signals that stop a job. */
#ifndef CRUN_LAUNCHER_OUTPUT_PROCESS_H
#define CRUN_LAUNCHER_OUTPUT_PROCESS_H

#define OUTPUT_LAST_MS 1000  /* after the end of the agent: for consoles, and for a disk that does not move */
#define OUTPUT_ALONE_MS 50   /* without guardian and agent, for pipes that children of workers keep open */
#define OUTPUT_STILL_MS 2000 /* at the end of a job, for a disk that does not move */

struct guardian_output;

/* The whole life of the process. Returns its exit code. */
int output_process_run(const struct guardian_output *g);

#endif

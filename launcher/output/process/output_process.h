/* Handles the workers' output in a process of its own, so that no disk and no console can delay the lease, a signal or
 * an exit.
 *
 *     guardian ──starts──► output process ◄──messages, pipes── agent          (output_wire.h)
 *                             │ the loop's thread: pipes ─► lines ─► consoles           (streams.h)
 *                             └ one for each disk: log files; event log; records and reports; preemption file
 *                               (file_thread.h); standard streams that are files, shared folders (apart_jobs.c)
 *
 * Who holds what. The agent makes the pipes of a round, sends their read ends, and keeps duplicates until it learns
 * that the round has been read to its end. So if the output process is killed, only the bytes in its memory are lost.
 * No worker gets EPIPE, and the guardian starts another one at once: it sends OUTPUT_HELLO, and the agent sends it all
 * that it must know. The shared page counts the bytes under way, so that the loss can be printed.
 *
 * What is dropped. Lines on consoles are never dropped while a reader may come: workers wait. For files see
 * file_thread.h. crun's own texts pass through this process, so that they are in order with the workers' lines. The
 * agent itself writes a text that has not been taken within OWN_TEXTS_MS (output_claim() decides who writes).
 *
 * Deaths.
 *   - this process: as above;
 *   - the agent: its workers die with it. Their output is read until end-of-file, or until the guardian says that
 *     nobody is left, then written out, for OUTPUT_LAST_MS at most;
 *   - the guardian: the agent kills the tree and exits; then as if the agent had died;
 *   - both: the same, OUTPUT_ALONE_MS later at most.
 * In good order the agent says that nothing more will come (OUTPUT_FLUSH), waits, and goes. The guardian then waits
 * GUARDIAN_OUTPUT_MS for this process, kills it, and names it where a disk holds it in the kernel even then. It
 * ignores all signals that stop a job. */
#ifndef CRUN_LAUNCHER_OUTPUT_PROCESS_H
#define CRUN_LAUNCHER_OUTPUT_PROCESS_H

#define OUTPUT_LAST_MS 1000  /* ms after the agent's end, for consoles, and for a disk that makes no progress */
#define OUTPUT_ALONE_MS 50   /* ms without guardian and agent, for pipes that children of workers keep open */
#define OUTPUT_STILL_MS 2000 /* ms at the end of a job for a disk that makes no progress */

struct guardian_output;

/* Run the process to its end. Returns its exit code. */
int output_process_run(const struct guardian_output *g);

#endif

/* `trainer comm-bench` and `trainer comm-test`: how fast collectives are, and whether they are right, on the ranks that
 * a launcher started. */
#ifndef CRUN_WORKER_COMM_MAIN_H
#define CRUN_WORKER_COMM_MAIN_H

int comm_bench_main(int argc, char **argv);
int comm_test_main(int argc, char **argv); /* exits 1 if an element is wrong */

#endif

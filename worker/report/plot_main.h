/* `trainer plot RUN_DIR [--out FILE.png]`: draw RUN_DIR/metrics.jsonl. */
#ifndef CRUN_WORKER_PLOT_MAIN_H
#define CRUN_WORKER_PLOT_MAIN_H

/* argv[0] is "plot". Prints the picture's path on stdout, errors on stderr; returns an exit code (exitcode.h). */
int plot_main(int argc, char **argv);

#endif

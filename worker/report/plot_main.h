/* `trainer plot RUN... [--out FILE.png] [--smooth N|SHARE]`: draw the curves of runs. */
#ifndef CRUN_WORKER_PLOT_MAIN_H
#define CRUN_WORKER_PLOT_MAIN_H

/* argv[0] is "plot". Prints the picture's path on stdout, errors on stderr; returns an exit code (exitcode.h). */
int plot_main(int argc, char **argv);

#endif

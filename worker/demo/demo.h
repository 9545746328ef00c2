/* `trainer demo`: what crun and trainer do together, from an empty folder to a picture, for people to watch.
 *
 *   draw a data set (data/sets/shapes.h) ──► crun, two ranks of trainer ──► a third of the way: kill -9 of
 *   rank 1
 *     ──► crun replaces it, trainer goes on ──► accuracy on pictures it never saw ──► plot.png
 *     (report/plot.h)
 *
 * demo_main.c says what is done in which order, job.c runs crun and watches it, launcher.c finds it. */
#ifndef CRUN_WORKER_DEMO_H
#define CRUN_WORKER_DEMO_H

/* argv[0] is "demo". An exit code: EXIT_FAIL if there was no restart or the accuracy is too low, crun's if it failed,
 * EXIT_UNAVAILABLE without a launcher. */
int demo_main(int argc, char **argv);

#endif

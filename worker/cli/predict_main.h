/* trainer predict FILE... --checkpoint PATH: what a trained model takes pictures for. */
#ifndef CRUN_WORKER_PREDICT_MAIN_H
#define CRUN_WORKER_PREDICT_MAIN_H

int predict_main(int argc, char **argv); /* argv[0] is skipped; returns the exit code */

#endif

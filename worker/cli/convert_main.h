/* trainer convert IN OUT: weights between checkpoints, safetensors and torch's .pth files. */
#ifndef CRUN_WORKER_CONVERT_MAIN_H
#define CRUN_WORKER_CONVERT_MAIN_H

int convert_main(int argc, char **argv); /* argv[0] is skipped; returns the exit code */

#endif

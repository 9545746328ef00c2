/* trainer gpu-info: which GPUs this process may use, and what cuDNN knows of them. */
#ifndef CRUN_WORKER_GPU_INFO_MAIN_H
#define CRUN_WORKER_GPU_INFO_MAIN_H

int gpu_info_main(int argc, char **argv); /* argv[0] is skipped; returns the exit code */

#endif

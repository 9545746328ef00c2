/* Commands beside training. Each is a small program over the other rooms; argv[0] is the command's name; the exit code
 * comes back.
 *
 *   plan       what a run would hold and send, rank by rank, without running it
 *   summary    what a run would train: layers, data, memory, schedule
 *   predict    pictures, a checkpoint -> input.h -> a plan of the forward part -> classes, one line a picture
 *   generate   tokens, or bytes as text, that a model continues others with
 *   convert    weights between checkpoints, safetensors and torch's .pth files (ckpt/weights.h)
 *   gpu-info   which GPUs this process may use, and what cuDNN knows of them
 *   gpu-doctor what a run on a GPU climbs, rung by rung, and which is the first that fails
 *   comm-bench how fast collectives are on the ranks that a launcher started; comm-test: whether they are right
 *
 * make-data and make-db are in worker/data, plot in worker/report. */
#ifndef CRUN_WORKER_CLI_H
#define CRUN_WORKER_CLI_H

int plan_main(int argc, char **argv);
int summary_main(int argc, char **argv);
int predict_main(int argc, char **argv);
int generate_main(int argc, char **argv);
int convert_main(int argc, char **argv);
int gpu_info_main(int argc, char **argv);
int gpu_doctor_main(int argc, char **argv); /* 1 if a rung fails, 124 if no time was left for one */
int comm_bench_main(int argc, char **argv);
int comm_test_main(int argc, char **argv); /* 1 if an element is wrong */

#endif

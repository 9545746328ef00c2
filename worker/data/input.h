/* How a picture becomes the input of a model. */
#ifndef CRUN_WORKER_DATA_INPUT_H
#define CRUN_WORKER_DATA_INPUT_H

enum input_kind { INPUT_TORCH, INPUT_CAFFE2, INPUT_PLAIN, INPUT_CIFAR };
#define INPUT_CHOICES "torch|caffe2|plain|cifar" /* in the order of enum input_kind */

#endif

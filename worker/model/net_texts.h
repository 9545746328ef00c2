/* The texts of nets/, as common/embed.py puts them into the program. */
#ifndef CRUN_WORKER_NET_TEXTS_H
#define CRUN_WORKER_NET_TEXTS_H

#include <stddef.h>

extern const char net_resnet_basic[], net_resnet_bottleneck[], net_wide_resnet[], net_convnet[], net_mlp[],
    net_convnext[], net_vit[], net_deit3[], net_gpt2[], net_llama[];

#endif

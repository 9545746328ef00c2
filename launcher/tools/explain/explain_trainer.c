/* The messages of trainer, from trainer's sources; none in a build without it. */
#include "launcher/tools/explain/explain_table.h"

#include <stddef.h>

const bool explain_knows_trainer = HAVE_TRAINER;

const struct explain_message explain_options[] = {
#if HAVE_TRAINER
#include "worker/messages/messages_options.def"
#endif
    {NULL, NULL, NULL},
};

const struct explain_message explain_trainer[] = {
#if HAVE_TRAINER
#include "worker/messages/messages.def"
#endif
    {NULL, NULL, NULL},
};

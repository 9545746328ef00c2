/* The model of a run, and what it reads: as the command line says; what that leaves out (c->given), as the
 * checkpoint says that the run goes on from (--resume), or the model's text; else the defaults. */
#ifndef CRUN_WORKER_MANIFEST_RUN_MODEL_H
#define CRUN_WORKER_MANIFEST_RUN_MODEL_H

struct err;
struct train_config;

/* What the options point at. */
struct run_model {
    char *arch, *text;
    char **class_names;
    int n_class_names;
    double attention_dropout; /* that a config.json tells, and that is not done */
};

/* Fill in of *c: arch (a name, no path), model, image_size, num_channels, or length and vocabulary; net_style, where
 * the model is a checkpoint's; without train_data, which only an evaluation may lack, the names of classes and
 * num_labels. Each rank looks for itself, before ranks meet: one that sees no checkpoint takes the defaults, and the
 * resume says that they differ. ERR_USAGE, ERR_CORRUPT, ERR_MISMATCH: one sentence. Blocks on files. *ret outlives
 * *c. */
int run_model_choose(struct run_model *ret, struct train_config *c, struct err *e);
/* Warns of what such a model has in training elsewhere, and not here. */
void run_model_tell(const struct run_model *m);
void run_model_free(struct run_model *m);

#endif

/* What an evaluation says beyond its averages: --report DIR. Each rank notes what the model says of each picture of its
 * share; rank 0 gets all notes at the end and writes
 *
 *   predictions.csv  a line a picture: its file, its class, the predicted one, the probabilities of both, and at which
 *                    place of the order its class came
 *   classes.csv      a line a class: pictures, how many of them are right (Acc@1, Acc@5), and as what most of the
 *                    others were taken
 *   confusion.csv    a row a class, a column a predicted one: pictures; up to REPORT_CLASSES_MAX classes
 *   confusion.png    the same, each row in shares of its pictures, where gnuplot is installed */
#ifndef CRUN_WORKER_EVAL_REPORT_H
#define CRUN_WORKER_EVAL_REPORT_H

#include <stddef.h>

struct batch;
struct comm;
struct dataset;
struct device;
struct err;
struct eval_report;
struct plan;
struct program;

#define REPORT_CLASSES_MAX 5000

/* dir is made, where it is not there, by the rank that writes. The others give NULL. ERR_OUTPUT. Borrowed until
 * eval_report_close(): all arguments. rows: of a batch. */
int eval_report_open(struct eval_report **ret, const char *dir, const struct program *p, size_t rows, struct err *e);
/* After a run of the plan over a batch. */
int eval_report_batch(struct eval_report *r, struct device *d, struct plan *plan, const struct batch *b, struct err *e);
/* All ranks. The rank with a folder writes. text: what people are told, one line; "" on other ranks. ERR_OUTPUT. */
int eval_report_write(struct eval_report *r, struct comm *c, struct dataset *d, char *text, size_t cap, struct err *e);
void eval_report_close(struct eval_report *r); /* NULL allowed */

#endif

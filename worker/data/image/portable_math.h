/* exp, log, sin, cos from + - * / alone: the same bits on every machine, which libm does not promise. Accurate to some
 * 1e-14 in the ranges stated; for augmentation and drawing, not for training. Compile with -ffp-contract=off. */
#ifndef CRUN_WORKER_DATA_PORTABLE_MATH_H
#define CRUN_WORKER_DATA_PORTABLE_MATH_H

double pm_exp(double x); /* |x| <= 16 */
double pm_log(double x); /* x > 0, finite */
double pm_sin(double x); /* |x| <= 7 */
double pm_cos(double x); /* |x| <= 5 */

#define PM_PI 3.14159265358979323846

#endif

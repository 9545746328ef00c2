/* Plain series after one exact reduction of the argument. */
#include "worker/data/image/portable_math.h"

#include <math.h>

double pm_exp(double x)
{
    double y = x / 64.0, term = 1.0, sum = 1.0; /* |y| <= 1/4 */
    for (int i = 1; i <= 14; i++) {
        term = term * y / i;
        sum += term;
    }
    for (int i = 0; i < 6; i++)
        sum *= sum;
    return sum;
}

double pm_log(double x)
{
    int exponent;
    double m = frexp(x, &exponent); /* exact: x = m * 2^exponent, m in [1/2, 1) */
    if (m < 0.70710678118654752) {
        m *= 2.0;
        exponent--;
    }
    double z = (m - 1.0) / (m + 1.0), zz = z * z, power = z, sum = 0.0; /* |z| < 0.172 */
    for (int i = 1; i <= 21; i += 2) {
        sum += power / i;
        power *= zz;
    }
    return 2.0 * sum + exponent * 0.69314718055994531;
}

double pm_sin(double x)
{
    while (x > PM_PI)
        x -= 2.0 * PM_PI;
    while (x < -PM_PI)
        x += 2.0 * PM_PI;
    double term = x, sum = x;
    for (int i = 2; i <= 30; i += 2) {
        term = -term * x * x / (i * (i + 1.0));
        sum += term;
    }
    return sum;
}

double pm_cos(double x)
{
    return pm_sin(x + PM_PI / 2.0);
}

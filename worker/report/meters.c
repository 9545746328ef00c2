/* Averages the results of steps, and hands them to whoever prints or writes them. */
#include "worker/report/meters.h"

static void meter_add(struct meter *m, double value, double weight)
{
    m->now = value;
    m->sum += value * weight;
    m->weight += weight;
}

double meters_mean(const struct meter *m)
{
    return m->weight > 0 ? m->sum / m->weight : 0;
}

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

static void begin_epoch(struct meters *m, int64_t epoch)
{
    m->epoch = epoch;
    m->loss = m->acc1 = m->acc5 = m->time = m->data = (struct meter){0};
    m->epoch_images = m->epoch_seconds = 0;
}

static void add_rate(struct meters *m, const struct meters_step *s)
{
    if (m->steps == METERS_WARM_UP_STEPS) /* forget it: from now on there is something better */
        m->epoch_images = m->epoch_seconds = m->run_images = m->run_seconds = m->run_steps = 0;
    m->steps++;
    m->run_steps++;
    m->epoch_images += s->count;
    m->epoch_seconds += s->seconds;
    m->run_images += s->count;
    m->run_seconds += s->seconds;
    m->rate_now = ratio(s->count, s->seconds);
}

void meters_add(struct meters *m, const struct meters_step *s)
{
    if (m->steps == 0 || s->epoch != m->epoch)
        begin_epoch(m, s->epoch);
    meter_add(&m->loss, ratio(s->loss, s->count), s->count);
    meter_add(&m->acc1, 100 * ratio(s->top1, s->count), s->count);
    meter_add(&m->acc5, 100 * ratio(s->top5, s->count), s->count);
    meter_add(&m->time, s->seconds, 1);
    meter_add(&m->data, s->data_seconds, 1);
    add_rate(m, s);
}

double meters_epoch_rate(const struct meters *m)
{
    return ratio(m->epoch_images, m->epoch_seconds);
}

double meters_run_rate(const struct meters *m)
{
    return ratio(m->run_images, m->run_seconds);
}

double meters_step_seconds(const struct meters *m)
{
    return ratio(m->run_seconds, (double)m->run_steps);
}

static struct progress_value value(const struct meter *m)
{
    return (struct progress_value){.now = m->now, .mean = meters_mean(m)};
}

void meters_show(const struct meters *m, struct progress_state *s)
{
    s->loss = value(&m->loss);
    s->acc1 = value(&m->acc1);
    s->acc5 = value(&m->acc5);
    s->time = value(&m->time);
    s->data = value(&m->data);
    s->rate = (struct progress_value){.now = m->rate_now, .mean = meters_epoch_rate(m)};
}

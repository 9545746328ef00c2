/* The lines of progress.h: pure functions of numbers. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "worker/report/progress.h"

#define LINE_CAP 256

char *progress_duration(double seconds, char *out, int cap)
{
    if (!(seconds >= 0) || seconds > 1e9) {
        snprintf(out, (size_t)cap, "?");
        return out;
    }
    long long s = llround(seconds);
    if (s < 60)
        snprintf(out, (size_t)cap, "%llds", s);
    else if (s < 3600)
        snprintf(out, (size_t)cap, "%lldm%02llds", s / 60, s % 60);
    else if (s < 86400)
        snprintf(out, (size_t)cap, "%lldh%02lldm", s / 3600, s % 3600 / 60);
    else
        snprintf(out, (size_t)cap, "%lldd%02lldh", s / 86400, s % 86400 / 3600);
    return out;
}

char *progress_timedelta(int64_t microseconds, char *out, int cap)
{
    int64_t s = microseconds / 1000000, us = microseconds % 1000000, days = s / 86400;
    char day[48] = "", part[16] = "";
    if (days)
        snprintf(day, sizeof day, "%" PRId64 " day%s, ", days, days == 1 ? "" : "s");
    if (us)
        snprintf(part, sizeof part, ".%06d", (int)us);
    snprintf(out, (size_t)cap, "%s%d:%02d:%02d%s", day, (int)(s / 3600 % 24), (int)(s / 60 % 60), (int)(s % 60), part);
    return out;
}

/* Append a part if it fits; false (and nothing appended) if not. */
__attribute__((format(printf, 4, 5))) static bool add(char *out, int room, bool first, const char *fmt, ...)
{
    char part[LINE_CAP];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(part, sizeof part, fmt, ap);
    va_end(ap);
    size_t at = strlen(out);
    if (!first && (int)(at + 2 + strlen(part)) > room)
        return false;
    sprintf(out + at, "%s%s", first ? "" : "  ", part);
    return true;
}

static int digits(int64_t n)
{
    int d = 1;
    while (n >= 10 && d < 19) {
        n /= 10;
        d++;
    }
    return d;
}

static void plain(const struct progress_state *s, int width, char *out, int cap)
{
    char line[2 * LINE_CAP] = "", eta[24];
    int room = width < LINE_CAP ? width : LINE_CAP;
    double wait = s->time.now > 0 ? s->data.now / s->time.now : 0;
    wait = wait >= 0 && wait <= 1 ? 100 * wait : 0;
    progress_duration(s->eta_seconds, eta, sizeof eta);
    (void)(add(line, room, true, "Epoch %" PRId64 "/%" PRId64 " [%*" PRId64 "/%" PRId64 "]", s->epoch + 1, s->epochs,
               digits(s->steps_per_epoch), s->step, s->steps_per_epoch) &&
           add(line, room, false, "loss %.4f", s->loss.mean) &&
           (!s->tokens || add(line, room, false, "perplexity %.2f", exp(s->loss.mean))) &&
           add(line, room, false, "Acc@1 %6.2f", s->acc1.mean) &&
           add(line, room, false, "%.1f %s/s%s", s->rate.mean, s->tokens ? "tok" : "img",
               s->synthetic ? " (synthetic)" : "") &&
           add(line, room, false, "ETA %s", eta) && add(line, room, false, "data wait %.0f%%", wait));
    snprintf(out, (size_t)cap, "%s", line);
}

static void torch(const struct progress_state *s, char *out, int cap)
{
    snprintf(out, (size_t)cap,
             "Epoch: [%" PRId64 "][%*" PRId64 "/%" PRId64 "]\tTime %6.3f (%6.3f)\tData %6.3f (%6.3f)\t"
             "Loss %.4e (%.4e)\tAcc@1 %6.2f (%6.2f)\tAcc@5 %6.2f (%6.2f)",
             s->epoch, digits(s->steps_per_epoch), s->step, s->steps_per_epoch, s->time.now, s->time.mean, s->data.now,
             s->data.mean, s->loss.now, s->loss.mean, s->acc1.now, s->acc1.mean, s->acc5.now, s->acc5.mean);
}

static void apex(const struct progress_state *s, char *out, int cap)
{
    snprintf(out, (size_t)cap,
             "Epoch: [%" PRId64 "][%" PRId64 "/%" PRId64 "]\tTime %.3f (%.3f)\tSpeed %.3f (%.3f)\t"
             "Loss %.10f (%.4f)\tPrec@1 %.3f (%.3f)\tPrec@5 %.3f (%.3f)",
             s->epoch, s->step, s->steps_per_epoch, s->time.now, s->time.mean, s->rate.now, s->rate.mean, s->loss.now,
             s->loss.mean, s->acc1.now, s->acc1.mean, s->acc5.now, s->acc5.mean);
}

static void article(const struct progress_state *s, char *out, int cap)
{
    snprintf(out, (size_t)cap, "Epoch [%" PRId64 "/%" PRId64 "], Step [%" PRId64 "/%" PRId64 "], Loss: %.4f",
             s->epoch + 1, s->epochs, s->step, s->steps_per_epoch, s->loss.now);
}

/* Python 2's str() of a float that was a float32: twelve digits, and at least one behind the point. */
static const char *python2(double v, char out[32])
{
    snprintf(out, 32, "%.12g", (double)(float)v);
    if (isfinite(v) && !strpbrk(out, ".e"))
        strcat(out, ".0");
    return out;
}

static void caffe2(const struct progress_state *s, char *out, int cap)
{
    char loss[32], accuracy[32];
    snprintf(out, (size_t)cap,
             "Finished iteration %" PRId64 "/%" PRId64 " of epoch %" PRId64 " (%.2f images/sec)\n"
             "Training loss: %s, accuracy: %s",
             s->step, s->steps_per_epoch, s->epoch, s->rate.now, python2(s->loss.now, loss),
             python2(s->acc1.now / 100, accuracy));
}

char *progress_text(enum progress_format f, const struct progress_state *s, int width, char *out, int cap)
{
    switch (f) {
    case PROGRESS_PLAIN:
        plain(s, width, out, cap);
        break;
    case PROGRESS_TORCH:
        torch(s, out, cap);
        break;
    case PROGRESS_APEX:
        apex(s, out, cap);
        break;
    case PROGRESS_ARTICLE:
        article(s, out, cap);
        break;
    case PROGRESS_CAFFE2:
        caffe2(s, out, cap);
        break;
    }
    return out;
}

char *progress_test_text(enum progress_format f, const struct progress_state *s, char *out, int cap)
{
    if (f == PROGRESS_APEX)
        snprintf(out, (size_t)cap,
                 "Test: [%" PRId64 "/%" PRId64 "]\tTime %.3f (%.3f)\tSpeed %.3f (%.3f)\tLoss %.4f (%.4f)\t"
                 "Prec@1 %.3f (%.3f)\tPrec@5 %.3f (%.3f)",
                 s->step, s->steps_per_epoch, s->time.now, s->time.mean, s->rate.now, s->rate.mean, s->loss.now,
                 s->loss.mean, s->acc1.now, s->acc1.mean, s->acc5.now, s->acc5.mean);
    else
        snprintf(out, (size_t)cap,
                 "Test: [%*" PRId64 "/%" PRId64 "]\tTime %6.3f (%6.3f)\tLoss %.4e (%.4e)\t"
                 "Acc@1 %6.2f (%6.2f)\tAcc@5 %6.2f (%6.2f)",
                 digits(s->steps_per_epoch), s->step, s->steps_per_epoch, s->time.now, s->time.mean, s->loss.now,
                 s->loss.mean, s->acc1.now, s->acc1.mean, s->acc5.now, s->acc5.mean);
    return out;
}

char *progress_summary_text(enum progress_format f, double acc1, double acc5, char *out, int cap)
{
    const char *what = f == PROGRESS_TORCH ? "Acc" : f == PROGRESS_APEX ? "Prec" : NULL;
    out[0] = '\0';
    if (what)
        snprintf(out, (size_t)cap, " * %s@1 %.3f %s@5 %.3f", what, acc1, what, acc5);
    return out;
}

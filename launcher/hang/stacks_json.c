/* Writes call stacks as JSON (stacks_json.h). */
#include "launcher/hang/stacks_json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/utf8.h"
#include "common/json/json_write.h"
#include "launcher/guard/procs.h"
#include "launcher/hang/gather.h"

#define LINE_BYTES 400

/* Shorten a frame so that the same place looks the same in all processes: eu-stack's "#3  0x00007f33d58c7aec pselect
 * - /usr/lib/libc.so.6" becomes "pselect (libc.so.6)"; py-spy's frames have no address. */
static void frame_text(const char *line, size_t n, char out[LINE_BYTES])
{
    char text[LINE_BYTES], *p = text;
    int skipped = 0;
    snprintf(text, sizeof text, "%.*s", (int)n, line);
    p += strspn(p, " ");
    if (sscanf(p, "#%*d 0x%*x%n", &skipped) == 0 && skipped > 0) {
        p += skipped + strspn(p + skipped, " ");
        char *dash = strstr(p, "- /");
        const char *file = dash ? strrchr(dash, '/') + 1 : "?";
        if (dash)
            *dash = '\0';
        const size_t name = strcspn(p, " ");
        snprintf(out, LINE_BYTES, "%.*s (%.100s)", name > 0 ? (int)name : 1, name > 0 ? p : "?", file);
    } else {
        snprintf(out, LINE_BYTES, "%s", p);
    }
    utf8_clean(out);
}

static void add_frames(struct json_write *w, const char *top)
{
    char text[LINE_BYTES];
    json_begin(w, "frames", '[');
    for (const char *p = top; *p; p += strcspn(p, "\n"), p += *p == '\n') {
        frame_text(p, strcspn(p, "\n"), text);
        json_text(w, NULL, text);
    }
    json_end(w, ']');
}

/* If no tool printed stacks, take the reason from the text of stacks.c. */
static void add_why(struct json_write *w, const struct gathered *v)
{
    char why[256];
    const char *said = v->text.data ? strstr(v->text.data, "(no call stacks") : NULL;
    if (!v->done)
        snprintf(why, sizeof why, "no time was left");
    else if (v->why[0])
        snprintf(why, sizeof why, "%s", v->why);
    else
        snprintf(why, sizeof why, "%.*s", said ? (int)strcspn(said + 1, "\n") - 1 : 0, said ? said + 1 : "");
    utf8_clean(why);
    json_text(w, "why", why);
}

static void add_process(struct json_write *w, const struct gathered *v)
{
    char wait[PROC_WAIT_MAX], state[2] = {proc_state(v->pid)};
    const char *at = proc_wait_text(v->pid, wait);
    json_begin(w, NULL, '{');
    json_int(w, "rank", v->rank);
    json_int(w, "pid", v->pid);
    json_text(w, "state", state);
    json_text(w, "wait", strncmp(at, " in ", 4) == 0 ? at + 4 : "");
    const bool known = v->done && v->top;
    add_frames(w, known ? v->top : "");
    if (!known)
        add_why(w, v);
    json_end(w, '}');
}

int stacks_json(struct gather *g, size_t max, struct buf *out)
{
    const size_t tail = 64;
    struct json_write w = {.out = out};
    int left_out = 0;
    json_begin(&w, NULL, '{');
    json_begin(&w, "ranks", '[');
    for (int i = 0; i < gather_count(g) && w.rc == 0; i++) {
        const size_t before = out->len;
        const bool comma = w.comma;
        add_process(&w, gather_at(g, i));
        if (out->len + tail > max) {
            left_out++;
            out->len = before;
            w.comma = comma;
        }
    }
    json_end(&w, ']');
    json_int(&w, "left_out", left_out);
    json_end(&w, '}');
    return w.rc;
}

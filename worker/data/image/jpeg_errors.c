/* Turns what libjpeg reports into a text and a longjmp. */
#include "worker/data/image/jpeg_errors.h"

#include <jerror.h>

/* Warnings that mean lost or wrong pixels. */
static const int corrupt[] = {JWRN_JPEG_EOF,       JWRN_HIT_MARKER,  JWRN_HUFF_BAD_CODE,
                              JWRN_ARITH_BAD_CODE, JWRN_MUST_RESYNC, JWRN_BOGUS_PROGRESSION};

static void escape(j_common_ptr cinfo)
{
    struct jpeg_errors *je = (struct jpeg_errors *)cinfo->err;
    cinfo->err->format_message(cinfo, je->text);
    longjmp(je->escape, 1);
}

static void message(j_common_ptr cinfo, int level)
{
    if (level >= 0) /* tracing */
        return;
    for (size_t i = 0; i < sizeof corrupt / sizeof *corrupt; i++)
        if (cinfo->err->msg_code == corrupt[i])
            escape(cinfo);
}

static void silence(j_common_ptr cinfo)
{
}

struct jpeg_error_mgr *jpeg_errors_init(struct jpeg_errors *je)
{
    jpeg_std_error(&je->base);
    je->base.error_exit = escape;
    je->base.emit_message = message;
    je->base.output_message = silence;
    je->text[0] = '\0';
    return &je->base;
}

void jpeg_errors_raise(j_common_ptr cinfo, const char *text)
{
    struct jpeg_errors *je = (struct jpeg_errors *)cinfo->err;
    snprintf(je->text, sizeof je->text, "%s", text);
    longjmp(je->escape, 1);
}

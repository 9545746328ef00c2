/* libjpeg reports through callbacks that may not return; this turns them into a text of ours and a longjmp, and prints
 * nothing. */
#ifndef CRUN_WORKER_DATA_JPEG_ERRORS_H
#define CRUN_WORKER_DATA_JPEG_ERRORS_H

#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>

#include <jpeglib.h>

struct jpeg_errors {
    struct jpeg_error_mgr base; /* first: libjpeg hands us this address */
    jmp_buf escape;             /* the caller sets it before any call that can fail */
    char text[JMSG_LENGTH_MAX]; /* what was wrong */
};

/* Returns what goes into cinfo->err. Warnings that part of the picture is missing or wrong are errors here: half a
 * picture is no sample. Harmless ones (stray bytes between markers, odd version numbers) are passed over, as Pillow
 * does. */
struct jpeg_error_mgr *jpeg_errors_init(struct jpeg_errors *je);

/* Give up from within a callback. */
void jpeg_errors_raise(j_common_ptr cinfo, const char *text) __attribute__((noreturn));

#endif

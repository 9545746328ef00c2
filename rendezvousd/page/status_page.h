/* The status page status_page.html, which common/embed.py puts into the program. */
#ifndef CRUN_RENDEZVOUSD_STATUS_PAGE_H
#define CRUN_RENDEZVOUSD_STATUS_PAGE_H

#include <stddef.h>

extern const char status_page[];
extern const size_t status_page_len;

#endif

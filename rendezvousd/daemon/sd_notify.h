/* Telling whoever started us how far we are. */
#ifndef CRUN_RENDEZVOUSD_SD_NOTIFY_H
#define CRUN_RENDEZVOUSD_SD_NOTIFY_H

struct err;

/* systemd's protocol: one datagram ("READY=1", "STOPPING=1") to the socket named by NOTIFY_SOCKET. 0 also where there
 * is none. */
int sd_notify_say(const char *text, struct err *e);

/* s6's protocol: a newline on the descriptor, which is closed then. */
int ready_fd_say(int fd, struct err *e);

#endif

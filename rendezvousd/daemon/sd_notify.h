/* Reports to the process that started us that we are ready, or stopping. */
#ifndef CRUN_RENDEZVOUSD_SD_NOTIFY_H
#define CRUN_RENDEZVOUSD_SD_NOTIFY_H

struct err;

/* systemd's protocol: send one datagram ("READY=1", "STOPPING=1") to the socket in NOTIFY_SOCKET. 0, too, if it is
 * not set. */
int sd_notify_say(const char *text, struct err *e);

/* s6's protocol: write a newline to the descriptor, and close it. */
int ready_fd_say(int fd, struct err *e);

#endif

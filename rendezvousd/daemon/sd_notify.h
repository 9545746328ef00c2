/* Reports to the process that started us that we are ready, or stopping, and takes the sockets that it gives us. */
#ifndef CRUN_RENDEZVOUSD_SD_NOTIFY_H
#define CRUN_RENDEZVOUSD_SD_NOTIFY_H

struct err;

/* systemd's protocol: send one datagram ("READY=1", "STOPPING=1") to the socket in NOTIFY_SOCKET. 0, too, if it is
 * not set. */
int sd_notify_say(const char *text, struct err *e);

/* Socket activation: the number of listening sockets that we were given, descriptors SD_LISTEN_FIRST and on
 * (LISTEN_PID, LISTEN_FDS); 0: none. They stay open, for whatever this process becomes by execve(2). */
#define SD_LISTEN_FIRST 3
int sd_listen_fds(void);

/* s6's protocol: write a newline to the descriptor, and close it. */
int ready_fd_say(int fd, struct err *e);

#endif

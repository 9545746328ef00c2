/* A server on a thread of its own, and a client of blocking sockets with deadlines. */
#ifndef CRUN_TESTS_RENDEZVOUSD_HARNESS_H
#define CRUN_TESTS_RENDEZVOUSD_HARNESS_H

#include "rendezvousd/net/server.h"
#include <stddef.h>

struct harness;

struct harness *harness_start(const struct server_options *o); /* on 127.0.0.1 */
void harness_stop(struct harness *h);                          /* orderly; fails the test if a handle stays open */
int harness_port(const struct harness *h);
struct server_stats harness_stats(struct harness *h); /* asked on the server's thread */

void client_connect(int fd, int port);
int client_open(int port);
void client_send(int fd, const void *p, size_t n);
void client_say(int fd, const char *text);
void client_expect(int fd, const char *reply); /* exactly these bytes next, within 20 s */
void client_expect_closed(int fd);             /* end of file or reset, within 20 s */
void client_expect_silence(int fd, int ms);    /* nothing comes for so long */
void client_talk(int fd, const char *say, const char *reply);

#endif

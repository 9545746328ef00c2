/* crun doctor on another host: looks, listens and dials as requested on standard input, and answers on standard output.
 * Each request and each answer is one line of JSON; answers begin with DOCTOR_MARK, which distinguishes them from what
 * shells print at login.
 *
 *     {"do":"facts","nonce":,"token_file":,"folder":}   struct facts (facts_json.c)
 *     {"do":"clock"}                                    {"us":} wall time, microseconds
 *     {"do":"listen","nonce":}                          {"port":}
 *     {"do":"dial","host":,"port":,"nonce":}            {"state":,"text":,"iface":,"mtu":,"passes":} (probe.h)
 *     {"do":"write","path":,"text":}                    {}
 *     {"do":"read","path":}                             {"text":}
 *     {"do":"remove","path":}                           {}
 *
 * or {"error":}. It ends at the end of its input. */
#ifndef CRUN_LAUNCHER_DOCTOR_AGENT_H
#define CRUN_LAUNCHER_DOCTOR_AGENT_H

#define DOCTOR_COMMAND "doctor-agent"
#define DOCTOR_MARK "\001crun-doctor 1 "
#define DOCTOR_LINE_MAX (256u << 10) /* bytes of a line */

/* `crun doctor-agent`: returns the exit code. */
int doctor_agent_main(void);

#endif

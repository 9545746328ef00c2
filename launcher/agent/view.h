/* The agent as those see it who look from outside (observe/agent_view.h). */
#ifndef CRUN_LAUNCHER_VIEW_H
#define CRUN_LAUNCHER_VIEW_H

struct agent_view;

void view_fill(void *run, struct agent_view *ret); /* struct agent_http_options.look */

#endif

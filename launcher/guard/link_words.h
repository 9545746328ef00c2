/* What the agent sends to the guardian over their link; for guardian.c and guardian_link.c alone. */
#ifndef CRUN_LAUNCHER_LINK_WORDS_H
#define CRUN_LAUNCHER_LINK_WORDS_H

/* Words of the link, one byte each. */
enum {
    WORD_HOLD = 'H' /* with the descriptor */,
    WORD_DROP = 'D',
    WORD_LEASE = 'L' /* look at it again */,
    WORD_SIGNALS = 'S',
    WORD_BOARD = 'B' /* look at it again */,
    WORD_CONSOLE = 'C' /* start the processes that write stdout and stderr, where these are files */,
    WORD_OUTPUT = 'O' /* start the output process */,
    WORD_HOME = 'R' /* start the home process, with its end of the socket to the agent */,
    WORD_GAUGES = 'G' /* start the gauges process */,
    WORD_STDIN = 'I' /* start the process that reads standard input, with the socket of stdin_file.h */
};

#endif

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
    /* start the output process if stdout or stderr is a file; with the socket of stdin_file.h, if stdin is one */
    WORD_CONSOLE = 'C',
    WORD_OUTPUT = 'O' /* start the output process */,
    WORD_GAUGES = 'G' /* start the gauges process */
};

#endif

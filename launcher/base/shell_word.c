/* Quotes a word for a POSIX shell (shell_word.h). */
#include "launcher/base/shell_word.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#define QUOTE_IN_QUOTES "'\\''"

/* Does the word mean only itself to a shell, so that it needs no quotes? */
static bool plain(const char *word)
{
    for (const char *p = word; *p; p++)
        if (!isalnum((unsigned char)*p) && !strchr("_-./:=,+@%", *p))
            return false;
    return *word;
}

char *shell_quote(const char *word, char *out, size_t cap)
{
    size_t n = 0;
    if (plain(word)) {
        snprintf(out, cap, "%s", word);
        return out;
    }
    out[n++] = '\'';
    for (; *word && n + 6 < cap; word++)
        if (*word == '\'') {
            memcpy(out + n, QUOTE_IN_QUOTES, sizeof QUOTE_IN_QUOTES - 1);
            n += sizeof QUOTE_IN_QUOTES - 1;
        } else {
            out[n++] = *word;
        }
    out[n++] = '\'';
    out[n] = 0;
    return out;
}

void shell_print(const char *word, FILE *out)
{
    if (plain(word)) {
        fputs(word, out);
        return;
    }
    fputc('\'', out);
    for (; *word; word++)
        if (*word == '\'')
            fputs(QUOTE_IN_QUOTES, out);
        else
            fputc(*word, out);
    fputc('\'', out);
}

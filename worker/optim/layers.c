/* Finds the layer of a parameter by its name. */
#include "worker/optim/layers.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "worker/program/program.h"

/* A number by itself, or words and "_3". A digit right behind a letter is part of a word: conv1, ln_f. */
static bool is_numbered(const char *part, size_t n)
{
    size_t digits = 0;
    while (digits < n && isdigit((unsigned char)part[n - 1 - digits]))
        digits++;
    return digits > 0 && (digits == n || part[n - 1 - digits] == '_');
}

/* The last component names a tensor of the layer: ln_1.weight is in ln_1, which is of a block only as all of it is. */
const char *layers_block(const char *name, char out[LAYER_NAME_MAX])
{
    out[0] = '\0';
    for (const char *at = name, *dot; (dot = strchr(at, '.')); at = dot + 1)
        if (is_numbered(at, (size_t)(dot - at))) {
            snprintf(out, LAYER_NAME_MAX, "%.*s", (int)(dot - name), name);
            break;
        }
    return out;
}

double layers_factor(const struct program *p, double decay, const char *name)
{
    char block[LAYER_NAME_MAX], last[LAYER_NAME_MAX] = "";
    int blocks = 0, mine = -1;
    for (int i = 0; i < p->nparams; i++) {
        if (p->params[i].role != PARAM_TRAIN)
            continue;
        layers_block(p->params[i].name, block);
        if (*block && strcmp(block, last) != 0) {
            memcpy(last, block, sizeof last);
            blocks++;
        }
        if (strcmp(p->params[i].name, name) == 0)
            mine = *block || blocks == 0 ? blocks : blocks + 1;
    }
    return mine < 0 || mine > blocks ? 1 : pow(decay, blocks + 1 - mine);
}

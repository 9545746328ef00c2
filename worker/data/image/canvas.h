/* A small software canvas: polygons (even-odd, antialiased), gradients and noise on a float RGB picture. For drawn data
 * sets. */
#ifndef CRUN_WORKER_DATA_CANVAS_H
#define CRUN_WORKER_DATA_CANVAS_H

#include <stdint.h>

struct point {
    double x, y;
};

#define OUTLINE_MAX 160 /* points */
#define OUTLINE_PARTS 2

/* Closed polygons, filled even-odd together. Part i is p[end[i-1] .. end[i]). */
struct outline {
    struct point p[OUTLINE_MAX];
    int end[OUTLINE_PARTS];
    int parts;
};

void outline_clear(struct outline *o);
void outline_add(struct outline *o, double x, double y); /* a point of the part being written */
void outline_close(struct outline *o);                   /* ends the part */
/* Points on an ellipse's arc from angle a to b (radians), both ends included. */
void outline_arc(struct outline *o, double cx, double cy, double rx, double ry, double a, double b, int points);
double outline_area(const struct outline *o); /* first part less the second */

/* p = centre + matrix * p */
void outline_transform(struct outline *o, const double matrix[4], double cx, double cy);

#define CANVAS_MAX 512 /* pixels a side */

struct canvas {
    int size;
    float *rgb; /* (size, size, 3), 0..255, clipped on output */
};

/* Blend a colour over the outline's inside with the given opacity; 4 x 4 samples and better per pixel. */
void canvas_fill(struct canvas *c, const struct outline *o, const float colour[3], float opacity);

#endif

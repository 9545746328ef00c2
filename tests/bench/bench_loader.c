/* The loader beside bare libjpeg-turbo on the same files: images/s over all cores.
 *
 *   bench_loader make DIR N QUALITY     N pictures of 500 x 375, chroma 2 x 2, in two classes; quality 90: some 85 KB
 *                                       each, 94: 110 KB, as ImageNet's are on average
 *   bench_loader bare DIR SECONDS       every thread decodes whole files into RGB with libjpeg
 *   bench_loader loader DIR SECONDS     the trainer's loader: decode, random resized crop to 224, flip
 *   bench_loader v2 DIR SECONDS         the same with torchvision's V2 recipe: crops of 176, TrivialAugmentWide,
 *                                       erasing, mixup or CutMix, 4 repetitions
 * Threads: THREADS in the environment, else the cores we may use. Prints images a second, and images a second of
 * processor time. */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include <jpeglib.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "worker/data/image/rng.h"
#include "worker/data/loader/loader.h"
#include "worker/data/sets/dataset.h"

enum { WIDTH = 500, HEIGHT = 375, SIZE = 224, V2_SIZE = 176, BATCH = 64 };

static int die(const char *text)
{
    fprintf(stderr, "bench_loader: %s\n", text);
    exit(1);
}

static int threads(void)
{
    const char *told = getenv("THREADS");
    cpu_set_t set;
    if (told)
        return atoi(told);
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

/* --- pictures */

/* Smooth colours, edges of some discs and the grain of a camera: as much detail as photographs of this size have. */
static void draw(uint64_t id, uint8_t *px)
{
    struct rng r = rng_stream(1, RNG_SHAPES, id, 0);
    double wave[3][4], disc[24][6];
    for (int c = 0; c < 3; c++)
        for (int k = 0; k < 4; k++)
            wave[c][k] = rng_range(&r, 0.002, 0.05);
    for (int d = 0; d < 24; d++)
        for (int k = 0; k < 6; k++)
            disc[d][k] = k == 0   ? rng_range(&r, 0, WIDTH)
                         : k == 1 ? rng_range(&r, 0, HEIGHT)
                         : k == 2 ? rng_range(&r, 8, 80)
                                  : rng_range(&r, -60, 60);
    for (int y = 0; y < HEIGHT; y++)
        for (int x = 0; x < WIDTH; x++) {
            double v[3], grain = rng_range(&r, -20, 20);
            for (int c = 0; c < 3; c++)
                v[c] = 128 + 40 * sin(wave[c][0] * x + wave[c][1] * y) + 30 * sin(wave[c][2] * x * y / 100);
            for (int d = 0; d < 24; d++)
                if (hypot(x - disc[d][0], y - disc[d][1]) < disc[d][2])
                    for (int c = 0; c < 3; c++)
                        v[c] += disc[d][3 + c];
            for (int c = 0; c < 3; c++, px++) {
                const double one = v[c] + grain + rng_range(&r, -6, 6);
                *px = one < 0 ? 0 : one > 255 ? 255 : (uint8_t)one;
            }
        }
}

static void write_jpeg(const char *path, const uint8_t *px, int quality)
{
    struct jpeg_compress_struct ci;
    struct jpeg_error_mgr errors;
    FILE *f = fopen(path, "wb");
    if (!f)
        die("cannot write a picture");
    ci.err = jpeg_std_error(&errors);
    jpeg_create_compress(&ci);
    jpeg_stdio_dest(&ci, f);
    ci.image_width = WIDTH;
    ci.image_height = HEIGHT;
    ci.input_components = 3;
    ci.in_color_space = JCS_RGB;
    jpeg_set_defaults(&ci); /* chroma 2 x 2 */
    jpeg_set_quality(&ci, quality, TRUE);
    jpeg_start_compress(&ci, TRUE);
    while (ci.next_scanline < HEIGHT) {
        JSAMPROW row = (JSAMPROW)(uintptr_t)(px + (size_t)ci.next_scanline * WIDTH * 3);
        jpeg_write_scanlines(&ci, &row, 1);
    }
    jpeg_finish_compress(&ci);
    jpeg_destroy_compress(&ci);
    fclose(f);
}

static void make(const char *dir, int n, int quality)
{
    char path[4096];
    uint8_t *px = malloc((size_t)WIDTH * HEIGHT * 3);
    mkdir(dir, 0777);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%c", dir, "ab"[i % 2]);
        mkdir(path, 0777);
        snprintf(path, sizeof path, "%s/%c/%05d.jpg", dir, "ab"[i % 2], i);
        draw((uint64_t)i, px);
        write_jpeg(path, px, quality);
    }
    free(px);
}

/* --- bare */

struct bare {
    struct dataset *data;
    int64_t end_ns;
    atomic_long done;
};

static void decode(const struct buf *file, uint8_t *px)
{
    struct jpeg_decompress_struct ci;
    struct jpeg_error_mgr errors;
    ci.err = jpeg_std_error(&errors);
    jpeg_create_decompress(&ci);
    jpeg_mem_src(&ci, (const unsigned char *)file->data, file->len);
    jpeg_read_header(&ci, TRUE);
    jpeg_start_decompress(&ci);
    while (ci.output_scanline < ci.output_height) {
        JSAMPROW row = px + (size_t)ci.output_scanline * WIDTH * 3;
        jpeg_read_scanlines(&ci, &row, 1);
    }
    jpeg_finish_decompress(&ci);
    jpeg_destroy_decompress(&ci);
}

static void *bare_thread(void *arg)
{
    struct bare *b = arg;
    struct buf file = {0};
    uint8_t *px = malloc((size_t)WIDTH * HEIGHT * 3);
    int label;
    for (long i = 0; clock_ns() < b->end_ns; i++) {
        buf_clear(&file);
        if (b->data->ops->read(b->data, (size_t)atomic_fetch_add(&b->done, 1) % b->data->n, &file, &label, NULL) < 0)
            die("cannot read a picture");
        decode(&file, px);
    }
    free(px);
    buf_free(&file);
    return NULL;
}

static int64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void report(double images, int64_t begin, int64_t cpu_begin)
{
    printf("%.1f %.1f\n", images * 1e9 / (double)(clock_ns() - begin), images * 1e9 / (double)(cpu_ns() - cpu_begin));
}

static void bare(struct dataset *d, double seconds)
{
    pthread_t t[256];
    const int n = threads();
    const int64_t begin = clock_ns(), cpu_begin = cpu_ns();
    struct bare b = {.data = d, .end_ns = begin + (int64_t)(seconds * 1e9)};
    for (int i = 0; i < n; i++)
        pthread_create(&t[i], NULL, bare_thread, &b);
    for (int i = 0; i < n; i++)
        pthread_join(t[i], NULL);
    report((double)b.done, begin, cpu_begin);
}

/* --- loader */

static struct loader_options v2(struct loader_options o)
{
    struct err e;
    o.sampler.repetitions = 4;
    o.input.size = V2_SIZE;
    o.input.erase = 0.1;
    o.mix = (struct mix_options){.mixup = 0.2, .cutmix = 1, .group = 128};
    if (policy_parse("trivial:bilinear", &o.input.policy, &e) < 0)
        die(e.text);
    return o;
}

static void with_loader(struct dataset *d, double seconds, bool augmented)
{
    struct loader *l;
    struct loader_batch b;
    struct err e;
    struct loader_options o = {
        .sampler = {.world = 1, .batch = BATCH, .shuffle = true},
        .input = {.size = SIZE, .channels = 3, .training = true, .augment = {0.08, 1, 3.0 / 4, 4.0 / 3, 0.5}},
        .threads = threads(),
        .strict = true};
    if (augmented)
        o = v2(o);
    if (loader_create(&l, d, &o, &e) < 0 || loader_seek(l, 0, 0, 1 << 30, &e) < 0)
        die(e.text);
    const int64_t begin = clock_ns(), cpu_begin = cpu_ns();
    size_t done = 0;
    while ((double)(clock_ns() - begin) < seconds * 1e9) {
        if (loader_next(l, &b, &e) < 0)
            die(e.text);
        done += b.count;
        loader_done(l, &b);
    }
    struct loader_stats s; /* what was prefetched was work, too */
    loader_stats(l, &s);
    report(done > 0 ? (double)s.images : 0, begin, cpu_begin);
    loader_destroy(l);
}

int main(int argc, char **argv)
{
    struct dataset *d;
    struct err e;
    const bool makes = argc == 5 && strcmp(argv[1], "make") == 0;
    if (!makes && argc != 4)
        return die("usage: bench_loader make DIR N QUALITY | bare|loader|v2 DIR SECONDS");
    if (makes) {
        make(argv[2], atoi(argv[3]), atoi(argv[4]));
        return 0;
    }
    if (dataset_open_folder(&d, argv[2], NULL, 0, &e) < 0)
        return die(e.text);
    const double seconds = atof(argv[3]);
    if (strcmp(argv[1], "bare") == 0)
        bare(d, seconds);
    else
        with_loader(d, seconds, strcmp(argv[1], "v2") == 0);
    dataset_close(d);
    return 0;
}

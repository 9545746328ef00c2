/* Lists the libraries that a file refused by dlopen() still wants. */
#include "worker/device/module/needed.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MISSING_MAX = 16 };

struct image { /* a file in memory; what it says of itself is believed within its size */
    const uint8_t *data;
    size_t size;
};

static const void *at(const struct image *m, uint64_t offset, uint64_t n)
{
    return offset <= m->size && n <= m->size - offset ? m->data + offset : NULL;
}

static bool image_open(struct image *m, const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *data = MAP_FAILED;
    if (fd >= 0 && fstat(fd, &st) == 0 && st.st_size > (off_t)sizeof(Elf64_Ehdr))
        data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (fd >= 0)
        close(fd);
    if (data == MAP_FAILED)
        return false;
    *m = (struct image){data, (size_t)st.st_size};
    return true;
}

/* The i-th program header of a type; NULL: none. */
static const Elf64_Phdr *segment(const struct image *m, Elf64_Word type, int i)
{
    const Elf64_Ehdr *h = at(m, 0, sizeof *h);
    if (!h || memcmp(h->e_ident, ELFMAG, SELFMAG) != 0 || h->e_ident[EI_CLASS] != ELFCLASS64)
        return NULL;
    const Elf64_Phdr *p = at(m, h->e_phoff, (uint64_t)h->e_phnum * sizeof *p);
    for (int k = 0; p && k < h->e_phnum; k++)
        if (p[k].p_type == type && i-- == 0)
            return &p[k];
    return NULL;
}

/* Where the bytes lie in the file that will lie at `address`. */
static uint64_t file_offset(const struct image *m, uint64_t address)
{
    const Elf64_Phdr *p;
    for (int i = 0; (p = segment(m, PT_LOAD, i)); i++)
        if (address >= p->p_vaddr && address - p->p_vaddr < p->p_filesz)
            return address - p->p_vaddr + p->p_offset;
    return UINT64_MAX;
}

static const char *text_at(const struct image *m, uint64_t offset)
{
    const char *text = at(m, offset, 1);
    return text && memchr(text, '\0', m->size - offset) ? text : NULL;
}

/* Is it in one of the folders "a:b"? */
static bool in_folders(const char *folders, const char *name)
{
    char path[PATH_MAX];
    while (folders && *folders) {
        const int n = (int)strcspn(folders, ":");
        if (snprintf(path, sizeof path, "%.*s/%s", n, folders, name) < PATH_MAX && access(path, R_OK) == 0)
            return true;
        folders += n + (folders[n] == ':');
    }
    return false;
}

static bool is_there(const char *name, const char *runpath)
{
    void *so = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    if (so)
        dlclose(so);
    return so || in_folders(runpath, name);
}

static int join(const char *const *names, int n, char *out, size_t cap)
{
    size_t len = 0;
    out[0] = '\0';
    for (int i = 0; i < n && len < cap; i++)
        len += (size_t)snprintf(out + len, cap - len, "%s%s", i == 0 ? "" : i == n - 1 ? " and " : ", ", names[i]);
    return n;
}

/* The value of the first entry of a kind; 0: none. */
static uint64_t dynamic_value(const Elf64_Dyn *d, size_t n, Elf64_Sxword tag)
{
    for (size_t i = 0; i < n && d[i].d_tag != DT_NULL; i++)
        if (d[i].d_tag == tag)
            return d[i].d_un.d_val;
    return 0;
}

static int missing(const struct image *m, char *out, size_t cap)
{
    const Elf64_Phdr *p = segment(m, PT_DYNAMIC, 0);
    const Elf64_Dyn *d = p ? at(m, p->p_offset, p->p_filesz) : NULL;
    if (!d)
        return 0;
    const size_t n = p->p_filesz / sizeof *d;
    const uint64_t texts = file_offset(m, dynamic_value(d, n, DT_STRTAB)), folders = dynamic_value(d, n, DT_RUNPATH);
    const char *runpath = folders && texts != UINT64_MAX ? text_at(m, texts + folders) : NULL;
    const char *names[MISSING_MAX];
    int found = 0;
    for (size_t i = 0; i < n && d[i].d_tag != DT_NULL && texts != UINT64_MAX && found < MISSING_MAX; i++) {
        const char *name = d[i].d_tag == DT_NEEDED ? text_at(m, texts + d[i].d_un.d_val) : NULL;
        if (name && !is_there(name, runpath))
            names[found++] = name;
    }
    return join(names, found, out, cap);
}

int needed_missing(const char *path, char *out, size_t cap)
{
    struct image m;
    if (!image_open(&m, path))
        return 0;
    const int n = missing(&m, out, cap);
    munmap((void *)(uintptr_t)m.data, m.size);
    return n;
}

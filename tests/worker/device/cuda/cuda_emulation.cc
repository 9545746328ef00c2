#include "tests/worker/device/cuda/cuda_emulation.h"

#include <ucontext.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#ifndef WITH_ASAN
#define WITH_ASAN 0
#endif
#if WITH_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulate
{
place here;

namespace
{
constexpr unsigned WARP = 32;
// The address sanitizer clears its shadow of the whole stack at each switch, by mmap() from half a megabyte on: seconds
// become minutes.
constexpr size_t STACK = (WITH_ASAN ? 64 : 128) << 10;

enum state { READY, AT_BARRIER, AT_SHUFFLE, DONE };

struct place_in_code { // for __builtin_setjmp(): swapcontext() asks the kernel for the signal mask each time
    void *words[5];
};

struct fiber { // runs block after block
    place_in_code at;
    bool begun = false;
    std::unique_ptr<char[]> stack{new char[STACK]};
    state st = DONE;
    unsigned index = 0;
    char value[16];
};

std::vector<std::unique_ptr<fiber>> pool;
fiber *current;
place_in_code scheduler;
const std::function<void()> *body_of_block;
uint32_t noise = 12345;

std::mutex one_launch; // ranks of a test are threads; there is one processor

// The address sanitizer wants to know which stack is in use.
#if WITH_ASAN
const void *scheduler_stack;
size_t scheduler_stack_bytes;
void *scheduler_shadow;
void to_fiber(const fiber &f)
{
    __sanitizer_start_switch_fiber(&scheduler_shadow, f.stack.get(), STACK);
}
void back_from_fiber()
{
    __sanitizer_finish_switch_fiber(scheduler_shadow, nullptr, nullptr);
}
void to_scheduler(void **shadow)
{
    __sanitizer_start_switch_fiber(shadow, scheduler_stack, scheduler_stack_bytes);
}
void in_fiber(void *shadow)
{
    __sanitizer_finish_switch_fiber(shadow, &scheduler_stack, &scheduler_stack_bytes);
}
#else
void to_fiber(const fiber &)
{
}
void back_from_fiber()
{
}
void to_scheduler(void **)
{
}
void in_fiber(void *)
{
}
#endif

uint32_t next_noise()
{
    noise = noise * 1664525u + 1013904223u;
    return noise >> 8;
}

// A switch changes every register, whatever the compiler finds out about these functions.
#ifdef __clang__
#define SWITCHES [[gnu::noinline]]
#else
#define SWITCHES [[gnu::noipa]]
#endif

SWITCHES void jump(place_in_code &to)
{
    __builtin_longjmp(to.words, 1);
}

SWITCHES void go_on_at(place_in_code &to, place_in_code &back)
{
    if (__builtin_setjmp(back.words) == 0)
        jump(to);
}

void wait_as(state s)
{
    void *shadow = nullptr;
    current->st = s;
    to_scheduler(&shadow);
    go_on_at(scheduler, current->at);
    in_fiber(shadow);
}

void enter()
{
    in_fiber(nullptr);
    for (;;) {
        (*body_of_block)();
        wait_as(DONE);
    }
}

SWITCHES void begin(fiber &f)
{
    ucontext_t c;
    f.begun = true;
    getcontext(&c);
    c.uc_stack.ss_sp = f.stack.get();
    c.uc_stack.ss_size = STACK;
    c.uc_link = nullptr;
    makecontext(&c, enter, 0);
    if (__builtin_setjmp(scheduler.words) == 0)
        setcontext(&c);
}

void resume(fiber &f)
{
    current = &f;
    here.thread = dim3(f.index);
    to_fiber(f);
    if (f.begun)
        go_on_at(f.at, scheduler);
    else
        begin(f);
    back_from_fiber();
}

// A warp goes on when none of its threads is still on the way; a block likewise. Threads that ended count as arrived.
bool release(unsigned first, unsigned end, state from)
{
    bool any = false;
    for (unsigned i = first; i < end; i++) {
        if (pool[i]->st != from && pool[i]->st != DONE)
            return false;
        any = any || pool[i]->st == from;
    }
    for (unsigned i = first; any && i < end; i++)
        if (pool[i]->st == from)
            pool[i]->st = READY;
    return any;
}

bool run_ready(unsigned n)
{
    bool any = false;
    const unsigned start = next_noise() % n, back = next_noise() % 2;
    for (unsigned k = 0; k < n; k++) {
        fiber &f = *pool[(start + (back ? n - k : k)) % n];
        if (f.st == READY) {
            any = true;
            resume(f);
        }
    }
    return any;
}

void run_block(unsigned n)
{
    while (pool.size() < n)
        pool.emplace_back(new fiber);
    for (unsigned i = 0; i < n; i++) {
        pool[i]->index = i;
        pool[i]->st = READY;
    }
    for (;;) {
        bool moved = run_ready(n);
        for (unsigned w = 0; w < n; w += WARP)
            moved = release(w, w + WARP < n ? w + WARP : n, AT_SHUFFLE) || moved;
        moved = release(0, n, AT_BARRIER) || moved;
        if (moved)
            continue;
        for (unsigned i = 0; i < n; i++)
            if (pool[i]->st != DONE)
                abort(); // threads wait at different places: undefined on a GPU, too
        return;
    }
}
} // namespace

void launch(dim3 blocks, dim3 threads, const std::function<void()> &body)
{
    const std::lock_guard<std::mutex> lock(one_launch);
    here.blocks = blocks;
    here.threads = threads;
    body_of_block = &body;
    for (unsigned y = 0; y < blocks.y; y++) {
        for (unsigned x = 0; x < blocks.x; x++) {
            here.block = dim3(x, y);
            run_block(threads.x);
        }
    }
}

void barrier()
{
    wait_as(AT_BARRIER);
}

void shuffle(const void *in, void *out, size_t bytes, unsigned lane_xor)
{
    fiber *f = current;
    memcpy(f->value, in, bytes);
    wait_as(AT_SHUFFLE); // everybody has written
    memcpy(out, pool[f->index ^ lane_xor]->value, bytes);
    wait_as(AT_SHUFFLE); // everybody has read
}
} // namespace emulate

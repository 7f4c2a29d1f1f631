// A block whose threads meet: shared memory, and __syncthreads. Only for kernels that name them.
//
// Each thread of the block has a stack of its own, and runs until it ends or waits at a barrier;
// then comes the next one. When all wait at the same barrier, a new phase begins. What one thread
// writes to shared memory and another reads or writes in the same phase is a race: on a device the
// order is chance.
#pragma once

#include <sys/mman.h>
#include <ucontext.h>

#include <cstdlib>

const size_t STACK_BYTES = 1 << 17;

struct Waiting { ucontext_t place; uint3 index; int barrier, line; };  // barrier -1: it has ended
struct Touched {  // one byte: who wrote it last, and up to two that read it, by thread number
    int writer, write_phase, reader, another, read_phase;
};

static Waiting* threads = nullptr;   // no std::vector: its own accesses would be watched
static Touched* touched = nullptr;
static ucontext_t scheduler, outside;
static int current = -1;
static void (*enter)() = nullptr;  // runs the kernel as the current thread, and returns

// Both ends of the section that __shared__ variables lie in. This one keeps it from being missing.
static char shared_anchor[64] __attribute__((section(SHARED_SECTION), used));
#ifdef __APPLE__
extern char shared_begin __asm("section$start$__DATA$shared_memory");
extern char shared_end __asm("section$end$__DATA$shared_memory");
#else
extern char shared_begin __asm("__start_shared_memory") __attribute__((visibility("hidden")));
extern char shared_end __asm("__stop_shared_memory") __attribute__((visibility("hidden")));
#endif

UNCHECKED static bool is_shared(char* address) {
    return address > &shared_begin - (1 << 20) && address < &shared_end + (1 << 20);
}

UNCHECKED static void race(int other, int kind) {
    if (launch->order != 0) return;  // in a given order the outcome is not chance
    launch->other = threads[other].index;
    fail(RACE, -1, 0, kind);
}

UNCHECKED static void check_shared(char* address, long long size, int kind) {
    if (address < &shared_begin || address + size > &shared_end)
        fail(SHARED_OUTSIDE, -1, 0, kind);
    if (kind == ADD) fail(SHARED_ADD, -1, 0, kind);
    note(-1, address - &shared_begin, 1, kind);
    for (long long i = 0; i < size; ++i) {
        Touched& byte = touched[address - &shared_begin + i];
        if (byte.write_phase == phase && byte.writer != current) race(byte.writer, kind);
        if (kind == WRITE) {
            if (byte.read_phase == phase && byte.reader != current) race(byte.reader, kind);
            if (byte.read_phase == phase && byte.another >= 0) race(byte.another, kind);
            byte.writer = current, byte.write_phase = phase;
        } else {
            if (byte.write_phase < 0 && launch->order == 0) fail(SHARED_UNWRITTEN, -1, 0, kind);
            if (byte.read_phase != phase) byte.reader = current, byte.another = -1;
            else if (byte.reader != current) byte.another = current;
            byte.read_phase = phase;
        }
    }
}

UNCHECKED void meet_at(int barrier, int line) {
    threads[current].barrier = barrier, threads[current].line = line;
    swapcontext(&threads[current].place, &scheduler);
    threadIdx = threads[current].index;
}

UNCHECKED static void start() {
    enter();
    threads[current].barrier = -1, threads[current].line = 0;
    setcontext(&scheduler);
}

// Instead of siglongjmp, which must not change stacks. Not to the scheduler: a signal may come while
// swapcontext has written half of it.
UNCHECKED static void leave() {
    setcontext(&outside);
}

// A device would hang, or let some threads pass a barrier that others have not come to.
UNCHECKED static void check_that_all_met(int count) {
    for (int t = 1; t < count && !launch->fault; ++t) {
        const bool first_waits = threads[0].barrier >= 0;
        const Waiting &one = threads[first_waits ? 0 : t], &other = threads[first_waits ? t : 0];
        if (one.barrier == other.barrier) continue;
        launch->fault = DIVERGED, launch->block_of = blockIdx;
        launch->thread = one.index, launch->other = other.index;
        launch->line = one.line, launch->other_line = other.line;
    }
}

// Runs one block; returns early after a fault.
UNCHECKED static void run_block() {
    const int count = blockDim.x * blockDim.y * blockDim.z;
    const size_t bytes = size_t(count) * STACK_BYTES, shared = &shared_end - &shared_begin;
    char* stacks = (char*)mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    threads = (Waiting*)std::calloc(count, sizeof(Waiting));
    touched = (Touched*)std::malloc(shared * sizeof(Touched));
    std::memset(touched, 0xFF, shared * sizeof(Touched));  // all -1: by nobody, never
    std::memset(&shared_begin, 0xFF, shared);              // nan, until it is written
    for (int t = 0; t < count; ++t) {
        Waiting& thread = threads[t];
        const unsigned x = t % blockDim.x, y = t / blockDim.x % blockDim.y;
        thread.index = {x, y, t / blockDim.x / blockDim.y};
        getcontext(&thread.place);
        thread.place.uc_stack.ss_sp = stacks + t * STACK_BYTES;
        thread.place.uc_stack.ss_size = STACK_BYTES;
        makecontext(&thread.place, start, 0);
    }
    phase = 0;
    getcontext(&outside);
    if (!launch->fault) do {
        for (int n = 0; n < count && !launch->fault; ++n) {
            current = turn(n, count);
            threadIdx = threads[current].index;
            stack_base = stacks + (current + 1) * STACK_BYTES - 4096;
            swapcontext(&scheduler, &threads[current].place);
        }
        check_that_all_met(count);
        ++phase;
    } while (threads[0].barrier >= 0 && !launch->fault);
    std::free(threads), std::free(touched);
    munmap(stacks, bytes);
}

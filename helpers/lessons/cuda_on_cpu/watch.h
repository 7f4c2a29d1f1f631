// Runs a kernel on the CPU, thread by thread, and watches every access to memory.
//
// The kernel is compiled with -fsanitize=thread, but the sanitizer's library is not linked: the
// compiler inserts a call of __tsan_read4(address), and the like, before each load and store, and
// the functions of those names are ours. So a wrong access is known before it happens, and named:
// which thread, which array, which element.
#pragma once

#include <csetjmp>
#include <csignal>
#include <cstddef>
#include <type_traits>
#include <utility>

#include <pthread.h>
#include <sys/time.h>

#define UNCHECKED __attribute__((no_sanitize("thread")))

enum Fault {
    NONE, OUTSIDE, READ_ONLY, WRITTEN_TWICE, READ_UNWRITTEN, UNKNOWN_MEMORY, TRAP, TOO_LONG,
    RACE, SHARED_OUTSIDE, SHARED_UNWRITTEN, DIVERGED, MISALIGNED, UNORDERED, SHARED_ADD
};
enum Kind { READ, WRITE, ADD };  // ADD: by atomicAdd

struct Touch { long long thread; int phase, kinds; };  // who was there last, from 1 on, and how

struct Array {                 // emulator.py has the same structure, in ctypes
    char* begin;
    long long count, itemsize;
    unsigned char* written;    // one flag for each element, or null: the array is read-only
    Touch* touches;            // one for each element of an array that the kernel accumulates in
};
struct Access { int array, kind; long long element, count; };
struct Launch {
    uint3 grid, block;
    long long first_block, last_block;  // run these only: [first, last)
    double seconds;                     // an endless loop ends when these are over
    int order;                          // of a block's threads: 1 up, -1 down, 0 any
    int seed;                           // of a random order, of blocks too; 0 if none is asked for
    int array_count;
    Array* arrays;
    uint3 watched_block, watched_thread;
    long long watched_capacity, watched_count;
    Access* watched;                    // receives what the watched thread reads and writes
    // the report
    int fault, array, kind;
    long long element;
    uint3 block_of, thread, other, other_block;
    int line, other_line;               // where they wait, 0 if a thread has returned
    int bytes;                          // of an access that is not aligned
};

static Launch* launch = nullptr;
static char* stack_base = nullptr;
static sigjmp_buf give_up;
static pthread_t runner;
static int phase = 0;  // of a block: how often its threads have met

UNCHECKED static bool same(uint3 a, uint3 b) { return a.x == b.x && a.y == b.y && a.z == b.z; }

#ifdef THREADS_MEET
static void leave();
static bool is_shared(char* address);
static void check_shared(char* address, long long size, int kind);
#endif

UNCHECKED static void fail(int fault, int array, long long element, int kind) {
    launch->fault = fault, launch->array = array, launch->kind = kind;
    launch->element = element, launch->block_of = blockIdx, launch->thread = threadIdx;
#ifdef THREADS_MEET
    leave();
#endif
    siglongjmp(give_up, 1);
}

// A division by zero, a bad address that the compiler did not announce, an index outside of a
// thread's own array, or the end of the time ends the kernel, not Python.
const int SIGNALS[] = {SIGFPE, SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGVTALRM};

UNCHECKED static void on_signal(int signal) {
    if (pthread_equal(pthread_self(), runner)) fail(signal == SIGVTALRM ? TOO_LONG : TRAP, -1, 0, READ);
    if (signal == SIGVTALRM) pthread_kill(runner, signal);  // the timer reaches any thread
    else std::signal(signal, SIG_DFL);                      // not ours: it comes again, and ends all
}

UNCHECKED static void set_timer(double seconds) {
    const long whole = long(seconds);
    const itimerval timer = {{0, 0}, {whole, int((seconds - whole) * 1e6)}};
    setitimer(ITIMER_VIRTUAL, &timer, nullptr);  // counts processor time
}

UNCHECKED static void note(int array, long long element, long long count, int kind) {
    if (launch->watched_count < launch->watched_capacity &&
        same(blockIdx, launch->watched_block) && same(threadIdx, launch->watched_thread))
        launch->watched[launch->watched_count++] = {array, kind, element, count};
}

UNCHECKED static uint3 triple(long long n, uint3 of) {
    return {unsigned(n % of.x), unsigned(n / of.x % of.y), unsigned(n / of.x / of.y)};
}

UNCHECKED static long long number(uint3 at, uint3 of) { return (at.z * (long long)of.y + at.y) * of.x + at.x; }

// Which one of `count` blocks, or threads of a block, comes n-th.
UNCHECKED static long long turn(long long n, long long count) {
    if (!launch->seed) return launch->order < 0 ? count - 1 - n : n;
    long long step = launch->seed * 2654435761LL % count, divisor = 0;
    do {  // until no place is met twice
        divisor = ++step;
        for (long long rest = count; rest;) { const long long r = divisor % rest; divisor = rest, rest = r; }
    } while (divisor != 1);
    return (step * n + launch->seed * 40503LL) % count;
}

// Two threads that touch an element, one of them writing, must both add, or meet in between.
UNCHECKED static void accumulate(int array, long long element, int kind) {
    Touch& last = launch->arrays[array].touches[element];
    const long long each = (long long)blockDim.x * blockDim.y * blockDim.z;
    const long long me = 1 + number(blockIdx, gridDim) * each + number(threadIdx, blockDim);
    if (last.thread == me) { last.kinds |= 1 << kind; return; }
    const long long before = last.thread - 1;
    const bool met = before / each == (me - 1) / each && last.phase < phase;
    const bool both_read = kind == READ && last.kinds == 1 << READ;
    const bool both_add = kind == ADD && last.kinds == 1 << ADD;
    if (last.thread && !met && !both_read && !both_add) {
        launch->other = triple(before % each, blockDim);
        launch->other_block = triple(before / each, gridDim);
        fail(UNORDERED, array, element, kind);
    }
    last = {me, phase, 1 << kind};
}

UNCHECKED static void visit(int array, long long element, int kind) {
    unsigned char* written = launch->arrays[array].written;
    if (kind != READ && !written) fail(READ_ONLY, array, element, kind);
    if (launch->arrays[array].touches) return accumulate(array, element, kind);
    if (kind != WRITE && written && !written[element]) fail(READ_UNWRITTEN, array, element, kind);
    if (kind != READ && written[element]) fail(WRITTEN_TWICE, array, element, kind);
    if (kind != READ) written[element] = 1;
}

UNCHECKED static void check(char* address, long long size, int kind, bool aligned = false) {
    if (!launch) return;
    int nearest = -1;
    long long distance = 0, nearest_element = 0;
    for (int i = 0; i < launch->array_count; ++i) {
        const Array& a = launch->arrays[i];
        const long long offset = address - a.begin, bytes = a.count * a.itemsize;
        const long long element = offset >= 0 ? offset / a.itemsize : -((-offset - 1) / a.itemsize + 1);
        if (offset >= 0 && offset + size <= bytes) {
            if (aligned && size_t(address) % size) {  // of several elements: one of them always is
                launch->bytes = size;
                fail(MISALIGNED, i, element, kind);
            }
            long long end = element;
            while (end * a.itemsize < offset + size) visit(i, end++, kind);
            note(i, element, end - element, kind);
            return;
        }
        const long long gap = offset < 0 ? -offset : offset + size - bytes;
        if (nearest < 0 || gap < distance) nearest = i, distance = gap, nearest_element = element;
    }
    // The kernel's own variables: what the compiler keeps on the stack, and blockIdx and the like.
    char here;
    if (address > &here && address < stack_base + 4096) return;
    uint3* const own[] = {&threadIdx, &blockIdx, &blockDim, &gridDim};
    for (uint3* variable : own)
        if (address >= (char*)variable && address + size <= (char*)(variable + 1)) return;
#ifdef THREADS_MEET
    if (is_shared(address)) return check_shared(address, size, kind);
#endif
    if (nearest < 0 || distance > 1LL << 36) fail(UNKNOWN_MEMORY, -1, 0, kind);
    fail(OUTSIDE, nearest, nearest_element, kind);
}

UNCHECKED void add_at(void* place, long long size) { check((char*)place, size, ADD, true); }

#ifdef THREADS_MEET
#include "block.h"
#endif

extern "C" {
#define ACCESS(size)                                                                               \
    UNCHECKED void __tsan_read##size(void* p) { check((char*)p, size, READ, true); }               \
    UNCHECKED void __tsan_write##size(void* p) { check((char*)p, size, WRITE, true); }             \
    UNCHECKED void __tsan_unaligned_read##size(void* p) { check((char*)p, size, READ); }           \
    UNCHECKED void __tsan_unaligned_write##size(void* p) { check((char*)p, size, WRITE); }         \
    UNCHECKED void __tsan_read_write##size(void* p) { check((char*)p, size, WRITE); }              \
    UNCHECKED void __tsan_unaligned_read_write##size(void* p) { check((char*)p, size, WRITE); }
ACCESS(1) ACCESS(2) ACCESS(4) ACCESS(8) ACCESS(16)
UNCHECKED void __tsan_read_range(void* p, size_t size) { check((char*)p, size, READ); }
UNCHECKED void __tsan_write_range(void* p, size_t size) { check((char*)p, size, WRITE); }
UNCHECKED void* __tsan_memcpy(void* to, const void* from, size_t size) {
    check((char*)from, size, READ), check((char*)to, size, WRITE);
    return std::memcpy(to, from, size);
}
UNCHECKED void* __tsan_memset(void* to, int byte, size_t size) {
    check((char*)to, size, WRITE);
    return std::memset(to, byte, size);
}
UNCHECKED void __tsan_init() {}
UNCHECKED void __tsan_func_entry(void*) {}
UNCHECKED void __tsan_func_exit() {}
}

// One letter for each parameter of the kernel: r (pointer to const), w (pointer), i (integer),
// f (floating point), s (structure); and its size, of the element if it is a pointer.
template <typename P>
constexpr char kind_of() {
    using Element = std::remove_pointer_t<P>;
    if (std::is_pointer<P>::value) return std::is_const<Element>::value ? 'r' : 'w';
    if (std::is_integral<P>::value) return 'i';
    return std::is_floating_point<P>::value ? 'f' : 's';
}

template <typename... P>
int describe(void (*)(P...), char* kinds, int* sizes) {
    const char kind[] = {kind_of<P>()...};
    const int size[] = {int(sizeof(std::remove_pointer_t<P>))...};
    for (size_t i = 0; i < sizeof...(P); ++i) kinds[i] = kind[i], sizes[i] = size[i];
    return sizeof...(P);
}

template <typename... P, size_t... I>
UNCHECKED void call(void (*kernel)(P...), void** arguments, std::index_sequence<I...>) {
    kernel(*(std::remove_const_t<P>*)arguments[I]...);
}

#ifdef THREADS_MEET
template <typename... P>
struct Meeting {
    static void (*kernel)(P...);
    static void** arguments;
    UNCHECKED static void call_it() {
        call(kernel, arguments, std::index_sequence_for<P...>());
    }
};
template <typename... P> void (*Meeting<P...>::kernel)(P...);
template <typename... P> void** Meeting<P...>::arguments;
#endif

template <typename... P>
UNCHECKED void run(void (*kernel)(P...), void** arguments, Launch* request) {
    char here;
    stack_base = &here;
    gridDim = request->grid;
    blockDim = request->block;
    runner = pthread_self();
    struct sigaction ours = {}, before[6];
    ours.sa_handler = on_signal;
    for (int i = 0; i < 6; ++i) sigaction(SIGNALS[i], &ours, &before[i]);
    set_timer(request->seconds);
    if (sigsetjmp(give_up, 1) == 0) {
        launch = request;  // from here on every access counts
        const long long blocks = request->last_block - request->first_block;
        for (long long b = 0; b < blocks; ++b) {
            blockIdx = triple(request->first_block + (launch->seed ? turn(b, blocks) : b), gridDim);
#ifdef THREADS_MEET
            Meeting<P...>::kernel = kernel, Meeting<P...>::arguments = arguments;
            enter = Meeting<P...>::call_it;
            run_block();
            if (launch->fault) break;
            continue;
#endif
            const int threads_of_it = blockDim.x * blockDim.y * blockDim.z;
            for (int t = 0; t < threads_of_it; ++t) {
                threadIdx = triple(turn(t, threads_of_it), blockDim);
                call(kernel, arguments, std::index_sequence_for<P...>());
            }
        }
    }
    launch = nullptr;
    set_timer(0);
    for (int i = 0; i < 6; ++i) sigaction(SIGNALS[i], &before[i], nullptr);
}

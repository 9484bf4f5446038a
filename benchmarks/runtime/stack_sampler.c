// Call stacks of chosen threads, taken by the wall clock, for benchmarks/runtime/host_costs.py.
#define _GNU_SOURCE
#include <errno.h>
#include <execinfo.h>
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { kFrames = 62, kThreads = 16 };

struct Sample {
    int32_t thread;
    int32_t count;
    void* frames[kFrames];  // innermost first, without the handler's
};

static struct Sample* samples;
static int capacity, taken;
static timer_t timers[kThreads];
static int timer_count;

static void on_signal(int number) {
    (void)number;
    const int saved = errno;
    const int index = __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED);
    if (index < capacity) {
        void* stack[kFrames + 2];
        const int depth = backtrace(stack, kFrames + 2);
        struct Sample* sample = &samples[index];
        sample->thread = (int32_t)syscall(SYS_gettid);
        for (sample->count = 0; sample->count + 2 < depth; ++sample->count)
            sample->frames[sample->count] = stack[sample->count + 2];
    }
    errno = saved;
}

// Returns 0, or errno. The first backtrace() loads a library, which a handler must not do.
int start(struct Sample* to, int count, const int32_t* threads, int thread_count, long nanoseconds) {
    void* stack[1];
    backtrace(stack, 1);
    samples = to;
    capacity = count;
    taken = 0;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    if (sigaction(SIGRTMIN + 3, &action, NULL) != 0) return errno;
    const struct itimerspec period = {{0, nanoseconds}, {0, nanoseconds}};
    for (timer_count = 0; timer_count < thread_count && timer_count < kThreads; ++timer_count) {
        struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN + 3};
        event._sigev_un._tid = threads[timer_count];
        if (timer_create(CLOCK_MONOTONIC, &event, &timers[timer_count]) != 0) return errno;
        if (timer_settime(timers[timer_count], 0, &period, NULL) != 0) return errno;
    }
    return 0;
}

// Returns how many samples were taken, of which no more than `count` are kept.
int stop(void) {
    for (int i = 0; i < timer_count; ++i) timer_delete(timers[i]);
    signal(SIGRTMIN + 3, SIG_IGN);
    return __atomic_load_n(&taken, __ATOMIC_RELAXED);
}

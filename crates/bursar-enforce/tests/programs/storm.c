// Threads that allocate and free without end, in many sizes.
#include "driver.h"
#include <pthread.h>
#include <time.h>

enum { HELD = 16 };
static unsigned long long seed;
static double until;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static unsigned next(unsigned long long *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state >> 32;
}

static void *allocate(void *number) {
    unsigned long long state = seed * 977 + (uintptr_t)number * 7919 + 1;
    struct AllocationProperties kind = on_device();
    Pointer linear[HELD] = { 0 }, pages[HELD] = { 0 };
    OK(cuCtxSetCurrent(context));
    while (now() < until) {
        unsigned at = next(&state) % HELD;
        if (next(&state) % 4) {
            if (linear[at]) {
                OK(cuMemFree(linear[at]));
                linear[at] = 0;
            } else {
                Result result = cuMemAlloc(&linear[at], 1 + next(&state) % (16 << 20));
                CHECK(result == SUCCESS || (result == OUT_OF_MEMORY && linear[at] == 0));
            }
        } else if (pages[at]) {
            OK(cuMemRelease(pages[at]));
            pages[at] = 0;
        } else {
            Result result = cuMemCreate(&pages[at], (1 + next(&state) % 4) * PAGE, &kind, 0);
            CHECK(result == SUCCESS || (result == OUT_OF_MEMORY && pages[at] == 0));
        }
    }
    for (int at = 0; at < HELD; at++) {
        if (linear[at])
            OK(cuMemFree(linear[at]));
        if (pages[at])
            OK(cuMemRelease(pages[at]));
    }
    return NULL;
}

int main(int count, char **words) {
    CHECK(count == 4);
    int threads = atoi(words[1]);
    seed = strtoull(words[2], NULL, 10);
    start("local");
    until = now() + atof(words[3]);
    pthread_t all[threads];
    for (uintptr_t number = 0; number < (uintptr_t)threads; number++)
        CHECK(pthread_create(&all[number], NULL, allocate, (void *)number) == 0);
    for (int number = 0; number < threads; number++)
        pthread_join(all[number], NULL);
    puts("done");
}

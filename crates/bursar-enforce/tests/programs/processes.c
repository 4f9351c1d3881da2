// Programs that fork, execute others, and end in odd places.
#include "driver.h"
#include <errno.h>
#include <pthread.h>
#include <sys/wait.h>

static void ends_well(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static Pointer kept;

// A child without exec is told by status that the driver is its parent's, and its parent goes on.
static void forks(void) {
    start("local");
    OK(cuMemAlloc(&kept, 1 << 20));
    pid_t child = fork();
    if (child == 0) {
        Pointer more = 0;
        struct AllocationProperties kind = on_device();
        CHECK(cuMemAlloc(&more, 256) == NOT_INITIALIZED && more == 0);
        CHECK(cuMemCreate(&more, PAGE, &kind, 0) == NOT_INITIALIZED);
        cuMemFree(kept);
        size_t free, total;
        cuMemGetInfo(&free, &total);
        _exit(0);
    }
    ends_well(child);
    CHECK(charged() == 1 << 20 && given() == charged());
    OK(cuMemFree(kept));
    CHECK(charged() == 0 && given() == 0);
}

// A child that was forked before anything happened has a driver and the share like anybody.
static void forks_first(void) {
    pid_t child = fork();
    start("local");
    OK(cuMemAlloc(&kept, 1 << 20));
    if (child == 0)
        _exit(0);
    ends_well(child);
    CHECK(charged() == 1 << 20 && given() == charged());
}

// So has one whose parent has only looked at memory and looked functions up.
static void forks_after_looking(void) {
    find("address");
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    int (*init)(void) = dlsym(nvml, "nvmlInit_v2");
    int (*by_index)(unsigned, Handle *) = dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
    int (*info)(Handle, unsigned long long *) = dlsym(nvml, "nvmlDeviceGetMemoryInfo");
    unsigned long long memory[3];
    Handle device;
    OK(init());
    OK(by_index(0, &device));
    OK(info(device, memory));
    CHECK(memory[0] == 64 << 20);
    for (int generation = 0; generation < 3; generation++) {
        pid_t child = fork();
        if (child) {
            ends_well(child);
            _exit(0);
        }
        OK(info(device, memory));
        CHECK(memory[0] == 64 << 20);
    }
    start("local");
    OK(cuMemAlloc(&kept, 64 << 20));
    CHECK(cuMemAlloc(&kept, 1) == OUT_OF_MEMORY);
}

static void executes(char *self) {
    start("local");
    OK(cuMemAlloc(&kept, 40 << 20));
    execl(self, self, "executed", NULL);
    CHECK(0);
}

static void executed(void) {
    start("local");
    CHECK(charged() == 0 && given() == 0);
    OK(cuMemAlloc(&kept, 40 << 20));
}

// Children have the same share: what one takes the other does not have.
static void shares(char *self) {
    start("local");
    OK(cuMemAlloc(&kept, 40 << 20));
    pid_t child = fork();
    if (child == 0) {
        execl(self, self, "shared", NULL);
        _exit(1);
    }
    ends_well(child);
    CHECK(charged() == 40 << 20 && given() == charged());
}

static void shared(void) {
    start("local");
    Pointer taken;
    CHECK(left() == 24 << 20);
    CHECK(cuMemAlloc(&taken, (24 << 20) + 1) == OUT_OF_MEMORY);
    OK(cuMemAlloc(&taken, 24 << 20));
}

// Registers a function for the end of the thread, before whatever was registered earlier.
extern int __cxa_thread_atexit_impl(void (*)(void *), void *, void *);
extern void *__dso_handle;

static void late(void *value) {
    Pointer taken;
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc(&taken, 1 << 20));
    OK(cuMemFree(taken));
    OK(cuMemFree((Pointer)(uintptr_t)value));
}

static void *run_late(void *nothing) {
    Pointer taken;
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc(&taken, 1 << 20));
    __cxa_thread_atexit_impl(late, (void *)(uintptr_t)taken, &__dso_handle);
    return nothing;
}

static void *make_contexts(void *number) {
    struct Plane plane = { 32, 32, 0x20, 1 };
    Handle other, array;
    Pointer taken;
    for (int round = 0; round < 4000; round++) {
        OK(cuCtxCreate(&other, 0, 0));
        OK(cuMemAlloc(&taken, 1 + (round * 7919 + (uintptr_t)number * 977) % (1 << 20)));
        OK(cuArrayCreate(&array, &plane));
        OK(cuCtxDestroy(other));
    }
    return NULL;
}

// Threads that are given the addresses and handles of contexts that others have just destroyed.
static void destroys_contexts(void) {
    start("local");
    pthread_t threads[8];
    for (uintptr_t at = 0; at < 8; at++)
        CHECK(pthread_create(&threads[at], NULL, make_contexts, (void *)at) == 0);
    for (int at = 0; at < 8; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
    CHECK(charged() == 0 && given() == 0);
    CHECK(cuCtxDestroy((Handle)&threads) != SUCCESS && charged() == 0);
}

static volatile int is_over;

static void *fill_pool(void *nothing) {
    Pointer taken[8];
    OK(cuCtxSetCurrent(context));
    for (int round = 0; round < 10000; round++) {
        int count = 0;
        while (count < 8) {
            Result result = cuMemAllocAsync(&taken[count], 3 << 20, NULL);
            CHECK(result == SUCCESS || result == OUT_OF_MEMORY);
            if (result == OUT_OF_MEMORY)
                break;
            count++;
        }
        while (count)
            OK(cuMemFreeAsync(taken[--count], NULL));
        OK(cuStreamSynchronize(NULL));
    }
    return NULL;
}

static void *watch_device(void *whole) {
    OK(cuCtxSetCurrent(context));
    while (!is_over)
        CHECK(given() <= (size_t)whole);
    return NULL;
}

// Threads that fill a pool at the limit at once: the driver never gives out more than the share.
static void fills_pool(void) {
    start("local");
    pthread_t threads[8], watch;
    CHECK(given() == 0);
    CHECK(pthread_create(&watch, NULL, watch_device, (void *)left()) == 0);
    for (int at = 0; at < 8; at++)
        CHECK(pthread_create(&threads[at], NULL, fill_pool, NULL) == 0);
    for (int at = 0; at < 8; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
    is_over = 1;
    CHECK(pthread_join(watch, NULL) == 0);
    OK(cuCtxSynchronize());
    CHECK(charged() == 0 && given() == 0);
}

// A thread that allocates while its values are destroyed.
static void ends_late(void) {
    start("local");
    pthread_t thread;
    for (int round = 0; round < 8; round++) {
        CHECK(pthread_create(&thread, NULL, run_late, NULL) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    CHECK(charged() == 0 && given() == 0);
}

static void at_exit(void) {
    cuMemFree(kept);
    Pointer more;
    cuMemAlloc(&more, 256);
}

static void exits(void) {
    start("local");
    atexit(at_exit);
    OK(cuMemAlloc(&kept, 1 << 20));
    exit(0);
}

static void leaves(void *nothing) {
    (void)nothing;
    exit(0);
}

static void exits_in_callback(void) {
    start("local");
    Result (*launch)(Handle, void (*)(void *), void *) = dlsym(library, "cuLaunchHostFunc");
    atexit(at_exit);
    OK(cuMemAlloc(&kept, 1 << 20));
    launch(NULL, leaves, NULL);
    cuCtxSynchronize();
    pause();
}

static void keeps_errno(void) {
    start("local");
    Pointer taken, other;
    errno = 4711;
    OK(cuMemAlloc(&taken, 1000));
    CHECK(cuMemAlloc(&other, (size_t)1 << 40) == OUT_OF_MEMORY);
    left();
    OK(cuMemFree(taken));
    CHECK(errno == 4711);
}

int main(int count, char **words) {
    CHECK(count == 2);
    const char *what = words[1];
    if (!strcmp(what, "forks")) forks();
    else if (!strcmp(what, "forks-first")) forks_first();
    else if (!strcmp(what, "forks-after-looking")) forks_after_looking();
    else if (!strcmp(what, "executes")) executes(words[0]);
    else if (!strcmp(what, "executed")) executed();
    else if (!strcmp(what, "shares")) shares(words[0]);
    else if (!strcmp(what, "shared")) shared();
    else if (!strcmp(what, "ends-late")) ends_late();
    else if (!strcmp(what, "destroys-contexts")) destroys_contexts();
    else if (!strcmp(what, "fills-pool")) fills_pool();
    else if (!strcmp(what, "exits")) exits();
    else if (!strcmp(what, "exits-in-callback")) exits_in_callback();
    else if (!strcmp(what, "keeps-errno")) keeps_errno();
    else CHECK(0);
}

/* A program in C whose streams, threads and processes end while the driver still has something to do for them. */

#include "driver.h"

static volatile int may_end = 0, ended = 0;
static CUevent event;

static void waits(void *data) {
    (void)data;
    while (!may_end) usleep(100);
    ended = 1;
}

/* Lets a host function end a while after the caller has begun to wait for it. */
static void *lets_end(void *data) {
    (void)data;
    usleep(20000);
    may_end = 1;
    return NULL;
}

/* Destroys a stream that has work to do, and waits for it with `wait`. */
static void destroyed(unsigned flags, CUresult (*wait)(void)) {
    CUstream stream;
    pthread_t thread;
    may_end = ended = 0;
    OK(cuStreamCreate(&stream, flags));
    OK(cuLaunchHostFunc(stream, waits, NULL));
    OK(cuStreamDestroy_v2(stream));
    CHECK(pthread_create(&thread, NULL, lets_end, NULL) == 0);
    OK(wait());
    CHECK(ended);
    CHECK(pthread_join(thread, NULL) == 0);
}

/* Work on the legacy stream waits for blocking streams. */
static CUresult wait_for_legacy(void) {
    OK(cuEventRecord(event, NULL));
    return cuStreamSynchronize(NULL);
}

static CUresult reset(void) {
    return cuDevicePrimaryCtxReset_v2(0);
}

/* Whoever waits for a context waits for the streams that were destroyed in it, which orders what comes after. */
static void streams(void) {
    CUstream one, other;
    CUdeviceptr memory;
    unsigned char byte;
    start();
    OK(cuEventCreate(&event, 0));
    OK(cuMemAlloc_v2(&memory, 64));
    for (int turn = 0; turn < 3; turn++) {
        OK(cuStreamCreate(&one, 1));
        OK(cuStreamCreate(&other, 1));
        OK(cuMemsetD8Async(memory, 1, 64, one));
        OK(cuStreamDestroy_v2(one));
        OK(cuCtxSynchronize());
        OK(cuMemsetD8Async(memory, 2, 64, other));
        OK(cuStreamDestroy_v2(other));
        OK(cuCtxSynchronize());
        OK(cuMemcpyDtoH_v2(&byte, memory, 1));
        CHECK(byte == 2);
    }
    destroyed(1, cuCtxSynchronize);
    destroyed(0, cuCtxSynchronize);
    destroyed(0, wait_for_legacy);
    OK(cuMemFree_v2(memory));
    destroyed(1, reset);
}

static CUcontext context;
static CUdeviceptr kept;
static pthread_key_t key;

/* Uses memory and streams, that of the thread included, and gives everything back. */
static void work(void) {
    CUdeviceptr memory;
    CUstream stream;
    unsigned char bytes[64];
    OK(cuMemAlloc_v2(&memory, 64));
    OK(cuStreamCreate(&stream, 1));
    OK(cuMemsetD8Async(memory, 7, 64, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuStreamDestroy_v2(stream));
    for (int turn = 0; turn < 3; turn++) {
        OK(cuMemsetD8Async_ptsz(memory, 8, 64, NULL));
        OK(cuStreamSynchronize_ptsz(NULL));
    }
    OK(cuMemcpyDtoH_v2(bytes, memory, 64));
    CHECK(bytes[63] == 8);
    OK(cuMemFree_v2(memory));
    OK(cuCtxSynchronize());
}

static void thread_ends(void *data) {
    CHECK(data == &key);
    work();
    ended++;
}

static void *ends(void *data) {
    (void)data;
    OK(cuCtxSetCurrent(context));
    CHECK(pthread_setspecific(key, &key) == 0);
    work();
    return NULL;
}

/* A thread makes calls until its very end: destructors of keys run last. */
static void threads(void) {
    pthread_t thread;
    size_t before;
    context = start();
    before = free_memory();
    CHECK(pthread_key_create(&key, thread_ends) == 0);
    for (int number = 1; number < 4; number++) {
        CHECK(pthread_create(&thread, NULL, ends, NULL) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK(ended == number);
    }
    CHECK(free_memory() == before);
}

static void before_teardown(void) {
    work();
    OK(cuMemFree_v2(kept));
    ended = 1;
}

static void after_teardown(void) {
    CHECK(ended);
    REFUSED(4, cuCtxSynchronize());
    REFUSED(4, cuMemFree_v2(kept));
    REFUSED(4, cuInit(0));
    printf("told\n");
}

/* Functions that run at exit make calls, until those that were registered before the driver was initialised. */
static void exits(void) {
    CHECK(atexit(after_teardown) == 0);
    start();
    CHECK(atexit(before_teardown) == 0);
    OK(cuMemAlloc_v2(&kept, 64));
    work();
    exit(0);
}

static volatile int may_stop = 0;

static void *observes(void *device) {
    unsigned long long memory[3];
    while (!may_stop) OK(nvmlDeviceGetMemoryInfo(device, memory));
    return NULL;
}

/* A process that is forked off while another thread is in a call is told that it has no driver. */
static void forks(void) {
    void *device;
    pthread_t thread;
    int status;
    start();
    OK(nvmlInit_v2());
    OK(nvmlDeviceGetHandleByIndex_v2(0, &device));
    CHECK(pthread_create(&thread, NULL, observes, device) == 0);
    for (int turn = 0; turn < 40; turn++) {
        pid_t child = fork();
        if (child == 0) {
            unsigned long long memory[3];
            REFUSED(3, cuCtxSynchronize());
            REFUSED(1, nvmlDeviceGetMemoryInfo(device, memory));
            REFUSED(1, nvmlDeviceGetHandleByIndex_v2(0, &device));
            REFUSED(9, nvmlInit_v2());
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(status == 0);
    }
    may_stop = 1;
    CHECK(pthread_join(thread, NULL) == 0);
}

int main(int count, char **arguments) {
    const char *mode = count > 1 ? arguments[1] : "streams";
    if (strcmp(mode, "streams") == 0) streams();
    if (strcmp(mode, "threads") == 0) threads();
    if (strcmp(mode, "exit") == 0) exits();
    if (strcmp(mode, "forks") == 0) forks();
    return 0;
}

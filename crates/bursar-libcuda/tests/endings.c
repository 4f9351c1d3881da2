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

int main(int count, char **arguments) {
    const char *mode = count > 1 ? arguments[1] : "streams";
    if (strcmp(mode, "streams") == 0) streams();
    return 0;
}

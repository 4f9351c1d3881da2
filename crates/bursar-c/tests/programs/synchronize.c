/* Y1: a stream that is closed while another thread waits for its work. Once the call has returned, nothing uses the CUstream any
 * more, and its owner destroys it. */
#include "cuda.h"
#include "require.h"
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static bursar_stream adopted;
static atomic_int may_run, is_waiting, is_closed;

static void runs_when_told(void *unused) {
    (void)unused;
    while (!may_run)
        usleep(100);
}

static void *waits(void *unused) {
    is_waiting = 1;
    /* It is told that the stream is closed if it came too late. */
    bursar_status status = bursar_stream_synchronize(adopted);
    REQUIRE(status == BURSAR_OK || status == BURSAR_INVALID_HANDLE);
    if (status == BURSAR_OK)
        REQUIRE(may_run);
    else
        is_waiting = 2;
    return unused;
}

static void *closes(void *unused) {
    REQUIRE(bursar_stream_close(adopted) == BURSAR_OK);
    is_closed = 1;
    return unused;
}

int main(void) {
    bursar_driver_options options = {.struct_size = sizeof(options)};
    bursar_driver driver;
    bursar_device device;
    CUcontext context;
    CUstream raw;
    pthread_t waiter, closer;

    REQUIRE(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
    REQUIRE(cuStreamCreate(&raw, 1) == 0 && cuLaunchHostFunc(raw, runs_when_told, NULL) == 0);
    options.choice = BURSAR_DRIVER_CUDA;
    REQUIRE(bursar_driver_open(&options, &driver) == BURSAR_OK);
    REQUIRE(bursar_device_open(driver, 0, NULL, &device) == BURSAR_OK);
    REQUIRE(bursar_stream_adopt(device, raw, &adopted) == BURSAR_OK);
    REQUIRE(pthread_create(&waiter, NULL, waits, NULL) == 0);
    while (!is_waiting)
        usleep(100);
    usleep(20000);
    REQUIRE(pthread_create(&closer, NULL, closes, NULL) == 0);
    usleep(50000);
    /* The waiting thread is in its call, so the one that closes is too. */
    REQUIRE(is_closed == 0 || is_waiting == 2);
    may_run = 1;
    REQUIRE(pthread_join(waiter, NULL) == 0 && pthread_join(closer, NULL) == 0);
    REQUIRE(is_closed == 1 && cuStreamDestroy_v2(raw) == 0);
    REQUIRE(bursar_device_close(device) == BURSAR_OK && bursar_driver_close(driver) == BURSAR_OK);
    printf("closed after the wait\n");
    return 0;
}

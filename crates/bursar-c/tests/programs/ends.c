/* Y1: a program that ends with everything open and threads inside calls; calls are answered in the destructors of threads, in
 * functions at exit and in the destructors of the program. */
#include "require.h"
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

static bursar_device device;
static bursar_stack stack;
static bursar_stream stream;
static pthread_key_t key;
static atomic_int destroyed, is_waiting;

/* Allocates, frees and fails, and says where that went wrong. */
static void uses(const char *where) {
    bursar_block block;
    if (bursar_allocate(stack, 4096, 0, stream, BURSAR_UNTAGGED, &block) != BURSAR_OK ||
        bursar_free(block, stream) != BURSAR_OK ||
        bursar_allocate(stack, 0, 0, stream, BURSAR_UNTAGGED, &block) != BURSAR_INVALID_ARGUMENT) {
        fprintf(stderr, "a call %s failed\n", where);
        _exit(1);
    }
}

static void in_destructor_of_thread(void *unused) {
    (void)unused;
    uses("in a destructor of a thread");
    destroyed++;
}

static void at_exit(void) {
    uses("at exit");
    printf("at exit\n");
}

__attribute__((destructor)) static void in_destructor(void) {
    uses("in a destructor");
    printf("in a destructor\n");
    fflush(stdout);
}

static void *ends(void *unused) {
    REQUIRE(pthread_setspecific(key, &key) == 0);
    uses("in a thread");
    return unused;
}

static void *goes_on(void *unused) {
    for (;;)
        uses("in a thread that goes on");
    return unused;
}

static void *waits(void *unused) {
    bursar_reserve_options forever = {.struct_size = sizeof(forever)};
    bursar_reservation reservation;
    forever.timeout_ms = BURSAR_FOREVER;
    is_waiting = 1;
    bursar_reserve(device, (uint64_t)1 << 30, &forever, &reservation);
    fprintf(stderr, "a reservation that has no room returned\n");
    _exit(1);
    return unused;
}

int main(void) {
    bursar_driver driver;
    bursar_block block;
    bursar_reservation reservation;
    pthread_t thread;
    int at;

    REQUIRE(atexit(at_exit) == 0 && pthread_key_create(&key, in_destructor_of_thread) == 0);
    REQUIRE(bursar_driver_open(NULL, &driver) == BURSAR_OK);
    REQUIRE(bursar_device_open(driver, 0, NULL, &device) == BURSAR_OK);
    REQUIRE(bursar_stack_open(device, NULL, &stack) == BURSAR_OK);
    REQUIRE(bursar_stream_create(device, 0, &stream) == BURSAR_OK);
    REQUIRE(bursar_allocate(stack, 4096, 0, stream, BURSAR_UNTAGGED, &block) == BURSAR_OK);
    REQUIRE(bursar_reserve(device, (uint64_t)1 << 29, NULL, &reservation) == BURSAR_OK);
    for (at = 0; at < 20; at++) {
        REQUIRE(pthread_create(&thread, NULL, ends, NULL) == 0);
        REQUIRE(pthread_join(thread, NULL) == 0);
    }
    REQUIRE(destroyed == 20);
    for (at = 0; at < 3; at++)
        REQUIRE(pthread_create(&thread, NULL, goes_on, NULL) == 0);
    REQUIRE(pthread_create(&thread, NULL, waits, NULL) == 0);
    while (!is_waiting)
        usleep(100);
    usleep(5000);
    return 0;
}

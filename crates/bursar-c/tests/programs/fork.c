/* Y1: processes that are forked off while other threads are inside calls. Every call in them returns, is told so and changes
 * nothing; what the parent has stays its own. */
#include "readings.h"
#include "require.h"
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILDREN = 60, THREADS = 3 };

static const uint64_t MIB = (uint64_t)1 << 20;
static bursar_driver driver;
static bursar_device device;
static bursar_stack stack;
static bursar_stream stream;
static bursar_block block;
static bursar_reservation reservation;
static bursar_cancellation cancellation;
static volatile int is_over;

/* Allocates and frees, makes names, opens stacks and asks the ledger, so that a fork finds every lock held now and then. */
static void *keeps_busy(void *which) {
    bursar_block mine;
    bursar_stack other;
    uint64_t available;
    uint32_t tag;
    char name[32];
    unsigned turn = 0;
    while (!is_over) {
        REQUIRE(bursar_allocate(stack, 3 * MIB, 0, stream, BURSAR_UNTAGGED, &mine) == BURSAR_OK);
        REQUIRE(bursar_free(mine, stream) == BURSAR_OK);
        REQUIRE(bursar_stack_trim(stack, 0, NULL) == BURSAR_OK);
        REQUIRE(bursar_available(device, &available) == BURSAR_OK);
        snprintf(name, sizeof(name), "%s-%u", (const char *)which, turn++ % 64);
        REQUIRE(bursar_tag(name, &tag) == BURSAR_OK);
        REQUIRE(bursar_stack_open(device, NULL, &other) == BURSAR_OK);
        REQUIRE(bursar_stack_close(other) == BURSAR_OK);
    }
    return NULL;
}

/* Threads start, make calls and end, each with what it keeps for itself. */
static void *makes_one_call(void *unused) {
    bursar_block mine;
    REQUIRE(bursar_allocate(stack, 4096, 0, stream, BURSAR_UNTAGGED, &mine) == BURSAR_OK);
    REQUIRE(bursar_free(mine, stream) == BURSAR_OK);
    return unused;
}

static void *starts_threads(void *unused) {
    pthread_t thread;
    while (!is_over) {
        REQUIRE(pthread_create(&thread, NULL, makes_one_call, NULL) == 0);
        REQUIRE(pthread_join(thread, NULL) == 0);
    }
    return unused;
}

#define FORKED(call) REQUIRE((call) == BURSAR_FORKED)

static void is_told_by_every_call(void) {
    readings into = sized_readings();
    bursar_reserve_options forever = {.struct_size = sizeof(forever)};
    bursar_error error = {.struct_size = sizeof(error)};
    bursar_driver new_driver;
    bursar_device new_device;
    bursar_stack new_stack;
    bursar_stream new_stream;
    bursar_block new_block;
    bursar_reservation new_reservation;
    bursar_cancellation new_cancellation;
    uint64_t number;
    uint32_t tag;
    void *raw;

    forever.timeout_ms = BURSAR_FOREVER;
    FORKED(bursar_allocate(stack, 3 * MIB, 0, stream, BURSAR_UNTAGGED, &new_block));
    FORKED(bursar_free(block, stream));
    FORKED(bursar_record_use(block, stream, BURSAR_WRITE));
    FORKED(bursar_stack_open(device, NULL, &new_stack));
    FORKED(bursar_stack_device(stack, &new_device));
    FORKED(bursar_stack_read(stack, &into.stack));
    FORKED(bursar_device_sleep(device, NULL, &into.slept));
    FORKED(bursar_device_wake(device, 0, &into.woken));
    FORKED(bursar_device_sleep_read(device, &into.sleep));
    FORKED(bursar_stack_trim(stack, 0, &number));
    FORKED(bursar_granted_size(stack, 1, 0, &number));
    FORKED(bursar_graph_memory_open(stack, &new_stack));
    FORKED(bursar_graph_memory_release(stack, &number));
    FORKED(bursar_graph_launched(stack, stream));
    FORKED(bursar_capture_begin(stack, stream));
    FORKED(bursar_capture_enter(stack, stream));
    FORKED(bursar_capture_order(stack, stream, stream));
    FORKED(bursar_capture_end(stack));
    FORKED(bursar_stack_close(stack));
    FORKED(bursar_stream_create(device, 0, &new_stream));
    FORKED(bursar_stream_adopt(device, NULL, &new_stream));
    FORKED(bursar_stream_raw(stream, &raw));
    FORKED(bursar_stream_synchronize(stream));
    FORKED(bursar_stream_close(stream));
    FORKED(bursar_reserve(device, MIB, &forever, &new_reservation));
    FORKED(bursar_share(device, &new_reservation));
    FORKED(bursar_available(device, &number));
    FORKED(bursar_reservation_read(reservation, &into.reservation));
    FORKED(bursar_reservation_close(reservation));
    FORKED(bursar_cancellation_create(&new_cancellation));
    FORKED(bursar_cancel(cancellation));
    FORKED(bursar_cancellation_close(cancellation));
    FORKED(bursar_tag("a name of the child", &tag));
    FORKED(bursar_device_statistics(device, &into.counts));
    FORKED(bursar_device_statistics_of(device, BURSAR_UNTAGGED, &into.counts));
    FORKED(bursar_device_open(driver, 0, NULL, &new_device));
    FORKED(bursar_device_read(driver, 0, &into.device));
    FORKED(bursar_device_memory_read(driver, 0, &into.memory));
    FORKED(bursar_device_close(device));
    FORKED(bursar_driver_open(NULL, &new_driver));
    FORKED(bursar_driver_read(driver, &into.driver));
    FORKED(bursar_driver_close(driver));
    REQUIRE(bursar_last_error(&error) == BURSAR_OK && error.status == BURSAR_FORKED);
    REQUIRE(strstr(error.message, "forked") != NULL);
}

int main(void) {
    bursar_stack_options draws = {.struct_size = sizeof(draws)};
    bursar_reservation_reading reading = {.struct_size = sizeof(reading)};
    const char *names[THREADS] = {"one", "two", "three"};
    pthread_t threads[THREADS], starter;
    uint64_t before, after;
    int child, thread;

    REQUIRE(bursar_driver_open(NULL, &driver) == BURSAR_OK);
    REQUIRE(bursar_device_open(driver, 0, NULL, &device) == BURSAR_OK);
    REQUIRE(bursar_available(device, &before) == BURSAR_OK);
    REQUIRE(bursar_cancellation_create(&cancellation) == BURSAR_OK);
    REQUIRE(bursar_reserve(device, 64 * MIB, NULL, &reservation) == BURSAR_OK);
    draws.account = BURSAR_ACCOUNT_RESERVATION;
    draws.reservation = reservation;
    REQUIRE(bursar_stack_open(device, &draws, &stack) == BURSAR_OK);
    REQUIRE(bursar_stream_create(device, 0, &stream) == BURSAR_OK);
    REQUIRE(bursar_allocate(stack, MIB, 0, stream, BURSAR_UNTAGGED, &block) == BURSAR_OK);

    for (thread = 0; thread < THREADS; thread++)
        REQUIRE(pthread_create(&threads[thread], NULL, keeps_busy, (void *)names[thread]) == 0);
    REQUIRE(pthread_create(&starter, NULL, starts_threads, NULL) == 0);
    for (child = 0; child < CHILDREN; child++) {
        int status;
        pid_t forked = fork();
        REQUIRE(forked >= 0);
        if (forked == 0) {
            /* A call that does not return ends the child, and with it the test. */
            alarm(60);
            is_told_by_every_call();
            exit(0);
        }
        REQUIRE(waitpid(forked, &status, 0) == forked);
        REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    is_over = 1;
    REQUIRE(pthread_join(starter, NULL) == 0);
    for (thread = 0; thread < THREADS; thread++)
        REQUIRE(pthread_join(threads[thread], NULL) == 0);

    REQUIRE(bursar_reservation_read(reservation, &reading) == BURSAR_OK);
    REQUIRE(reading.bytes == 64 * MIB && reading.undrawn + reading.held == reading.bytes);
    REQUIRE(bursar_free(block, stream) == BURSAR_OK);
    REQUIRE(bursar_stack_close(stack) == BURSAR_OK);
    REQUIRE(bursar_reservation_close(reservation) == BURSAR_OK);
    REQUIRE(bursar_cancellation_close(cancellation) == BURSAR_OK);
    REQUIRE(bursar_available(device, &after) == BURSAR_OK && after == before);
    printf("all children were told\n");
    return 0;
}

/* Reservations that wait, time out and are cancelled, and the share of a worker, which the test hands over. */
#include "require.h"
#include <bursar.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bursar_device device;
static bursar_cancellation cancellation;
static const uint64_t MIB = (uint64_t)1 << 20;

static void *waits_until_cancelled(void *unused) {
    bursar_reserve_options options = {.struct_size = sizeof(options)};
    bursar_reservation reservation;
    bursar_error error = {.struct_size = sizeof(error)};
    options.timeout_ms = BURSAR_FOREVER;
    options.cancellation = cancellation;
    REQUIRE(bursar_reserve(device, MIB, &options, &reservation) == BURSAR_CANCELLED);
    REQUIRE(bursar_last_error(&error) == BURSAR_OK && error.is_capacity == 0);
    return unused;
}

static void *waits_until_granted(void *unused) {
    bursar_reserve_options options = {.struct_size = sizeof(options)};
    bursar_reservation reservation;
    options.timeout_ms = 60000;
    options.label = "waits";
    REQUIRE(bursar_reserve(device, MIB, &options, &reservation) == BURSAR_OK);
    REQUIRE(bursar_reservation_close(reservation) == BURSAR_OK);
    return unused;
}

int main(void) {
    bursar_driver driver;
    bursar_reservation all, share, late;
    bursar_reservation_reading reading = {.struct_size = sizeof(reading)};
    bursar_reserve_options options = {.struct_size = sizeof(options)};
    bursar_stack_options draws = {.struct_size = sizeof(draws)};
    bursar_stack stack;
    bursar_stream stream;
    bursar_block block;
    bursar_error error = {.struct_size = sizeof(error)};
    uint64_t available;
    pthread_t thread;

    REQUIRE(bursar_driver_open(NULL, &driver) == BURSAR_OK);
    REQUIRE(bursar_device_open(driver, 0, NULL, &device) == BURSAR_OK);
    REQUIRE(bursar_cancellation_create(&cancellation) == BURSAR_OK);
    REQUIRE(bursar_share(device, &share) == BURSAR_OK);
    if (getenv("BURSAR_RESERVATION") == NULL) {
        REQUIRE(share.id == 0);
    } else {
        REQUIRE(bursar_reservation_read(share, &reading) == BURSAR_OK);
        printf("a share of %llu MiB\n", (unsigned long long)(reading.bytes / MIB));
    }

    /* A stack on the share, or on a reservation of our own, is refused at its byte. */
    if (share.id == 0)
        REQUIRE(bursar_reserve(device, 64 * MIB, NULL, &share) == BURSAR_OK);
    draws.account = BURSAR_ACCOUNT_RESERVATION;
    draws.reservation = share;
    REQUIRE(bursar_stack_open(device, &draws, &stack) == BURSAR_OK);
    REQUIRE(bursar_reservation_close(share) == BURSAR_OK);
    REQUIRE(bursar_stream_create(device, 0, &stream) == BURSAR_OK);
    REQUIRE(bursar_allocate(stack, 64 * MIB, 0, stream, BURSAR_UNTAGGED, &block) == BURSAR_OK);
    REQUIRE(bursar_free(block, stream) == BURSAR_OK);
    REQUIRE(bursar_allocate(stack, 64 * MIB + 1, 0, stream, BURSAR_UNTAGGED, &block) == BURSAR_OUT_OF_BUDGET);
    REQUIRE(bursar_last_error(&error) == BURSAR_OK && error.requested == 64 * MIB + 1 && error.is_capacity == 1);
    REQUIRE(bursar_stack_close(stack) == BURSAR_OK);

    /* Where everything is set aside, others wait. */
    REQUIRE(bursar_available(device, &available) == BURSAR_OK && available > 0);
    REQUIRE(bursar_reserve(device, available, NULL, &all) == BURSAR_OK);
    REQUIRE(bursar_reserve(device, MIB, NULL, &late) == BURSAR_OUT_OF_BUDGET && late.id == 0);
    options.timeout_ms = 20;
    REQUIRE(bursar_reserve(device, MIB, &options, &late) == BURSAR_TIMED_OUT && late.id == 0);
    REQUIRE(bursar_last_error(&error) == BURSAR_OK && error.requested == MIB && error.available == 0);
    REQUIRE(error.limit > 0 && error.is_capacity == 1 && strstr(error.message, "20 ms") != NULL);

    REQUIRE(pthread_create(&thread, NULL, waits_until_cancelled, NULL) == 0);
    REQUIRE(bursar_cancel(cancellation) == BURSAR_OK);
    REQUIRE(pthread_join(thread, NULL) == 0);
    options.cancellation = cancellation;
    REQUIRE(bursar_reserve(device, 1, &options, &late) == BURSAR_CANCELLED);

    REQUIRE(pthread_create(&thread, NULL, waits_until_granted, NULL) == 0);
    REQUIRE(bursar_reservation_close(all) == BURSAR_OK);
    REQUIRE(pthread_join(thread, NULL) == 0);

    REQUIRE(bursar_stream_close(stream) == BURSAR_OK);
    REQUIRE(bursar_cancellation_close(cancellation) == BURSAR_OK);
    REQUIRE(bursar_device_close(device) == BURSAR_OK);
    REQUIRE(bursar_driver_close(driver) == BURSAR_OK);
    printf("all granted, refused and cancelled\n");
    return 0;
}

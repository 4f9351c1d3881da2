/* Y1: reservations of several processes, one of which is killed while it holds what another waits for. */
#include "device.h"
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const uint64_t MIB = (uint64_t)1 << 20;

/* Sets memory aside, holds some of it, says so and stays. */
static void holds(int ready) {
    bursar_device device = open_device();
    bursar_stack_options draws = {.struct_size = sizeof(draws)};
    bursar_stack stack;
    bursar_stream stream;
    bursar_block block;
    REQUIRE(bursar_reserve(device, 700 * MIB, NULL, &draws.reservation) == BURSAR_OK);
    draws.account = BURSAR_ACCOUNT_RESERVATION;
    REQUIRE(bursar_stack_open(device, &draws, &stack) == BURSAR_OK);
    REQUIRE(bursar_stream_create(device, 0, &stream) == BURSAR_OK);
    REQUIRE(bursar_allocate(stack, 300 * MIB, 0, stream, BURSAR_UNTAGGED, &block) == BURSAR_OK);
    REQUIRE(write(ready, "x", 1) == 1);
    for (;;)
        pause();
}

int main(void) {
    bursar_device device;
    bursar_reservation reservation;
    bursar_reserve_options wait = {.struct_size = sizeof(wait)};
    bursar_error error = {.struct_size = sizeof(error)};
    uint64_t available;
    pid_t holder, killer;
    int ready[2];
    char byte;

    REQUIRE(pipe(ready) == 0);
    holder = fork();
    REQUIRE(holder >= 0);
    if (holder == 0)
        holds(ready[1]);
    /* The end of the pipe is closed if the holder failed. */
    REQUIRE(close(ready[1]) == 0 && read(ready[0], &byte, 1) == 1);
    device = open_device();
    REQUIRE(bursar_reserve(device, 600 * MIB, NULL, &reservation) == BURSAR_OUT_OF_BUDGET && reservation.id == 0);
    REQUIRE(bursar_last_error(&error) == BURSAR_OK);
    REQUIRE(error.requested == 600 * MIB && error.available == 324 * MIB && error.limit == 1024 * MIB);
    wait.timeout_ms = 20;
    REQUIRE(bursar_reserve(device, 600 * MIB, &wait, &reservation) == BURSAR_TIMED_OUT && reservation.id == 0);

    killer = fork();
    REQUIRE(killer >= 0);
    if (killer == 0) {
        usleep(50000);
        _exit(kill(holder, SIGKILL) != 0);
    }
    wait.timeout_ms = BURSAR_FOREVER;
    REQUIRE(bursar_reserve(device, 600 * MIB, &wait, &reservation) == BURSAR_OK);
    REQUIRE(waitpid(holder, NULL, 0) == holder && waitpid(killer, NULL, 0) == killer);
    REQUIRE(bursar_available(device, &available) == BURSAR_OK && available == 424 * MIB);
    REQUIRE(bursar_reservation_close(reservation) == BURSAR_OK);
    REQUIRE(bursar_available(device, &available) == BURSAR_OK && available == 1024 * MIB);
    REQUIRE(bursar_device_close(device) == BURSAR_OK);
    printf("granted when the holder was killed\n");
    return 0;
}

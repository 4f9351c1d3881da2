/* Y1: handles that are closed in an order that nobody expects, what a stack that outlives them can still do, and a driver that
 * only observes. */
#include "require.h"

static const uint64_t MIB = (uint64_t)1 << 20;

static void observes(void) {
    bursar_driver_options options = {.struct_size = sizeof(options)};
    bursar_device_memory memory = {.struct_size = sizeof(memory)};
    bursar_driver driver;
    bursar_device device;
    bursar_stack stack = {7};
    bursar_stream stream = {7};
    bursar_reservation reservation;

    options.observes_only = 1;
    REQUIRE(bursar_driver_open(&options, &driver) == BURSAR_OK);
    REQUIRE(bursar_device_open(driver, 0, NULL, &device) == BURSAR_OK);
    REQUIRE(bursar_stack_open(device, NULL, &stack) == BURSAR_UNSUPPORTED && stack.id == 0);
    REQUIRE(bursar_stream_create(device, 0, &stream) == BURSAR_UNSUPPORTED && stream.id == 0);
    REQUIRE(bursar_stream_adopt(device, NULL, &stream) == BURSAR_UNSUPPORTED && stream.id == 0);
    REQUIRE(bursar_device_memory_read(driver, 0, &memory) == BURSAR_OK && memory.free > 0);
    REQUIRE(bursar_reserve(device, MIB, NULL, &reservation) == BURSAR_OK);
    REQUIRE(bursar_reservation_close(reservation) == BURSAR_OK);
    REQUIRE(bursar_device_close(device) == BURSAR_OK && bursar_driver_close(driver) == BURSAR_OK);
}

int main(void) {
    bursar_driver driver;
    bursar_device device, again;
    bursar_stack_options draws = {.struct_size = sizeof(draws)};
    bursar_stack stack;
    bursar_stream stream, other;
    bursar_block block, moved;
    bursar_reservation reservation;
    bursar_statistics counts = {.struct_size = sizeof(counts)};
    bursar_error error = {.struct_size = sizeof(error)};
    uint64_t before, after;

    REQUIRE(bursar_driver_open(NULL, &driver) == BURSAR_OK);
    REQUIRE(bursar_device_open(driver, 0, NULL, &device) == BURSAR_OK);
    REQUIRE(bursar_available(device, &before) == BURSAR_OK);
    REQUIRE(bursar_reserve(device, 64 * MIB, NULL, &reservation) == BURSAR_OK);
    draws.account = BURSAR_ACCOUNT_RESERVATION;
    draws.reservation = reservation;
    REQUIRE(bursar_stack_open(device, &draws, &stack) == BURSAR_OK);
    REQUIRE(bursar_stream_create(device, 0, &stream) == BURSAR_OK);
    REQUIRE(bursar_allocate(stack, 2 * MIB, 0, stream, BURSAR_UNTAGGED, &block) == BURSAR_OK);

    /* A block is the number and the address, in every call. */
    moved = block;
    moved.address += 256;
    REQUIRE(bursar_record_use(moved, stream, BURSAR_READ) == BURSAR_INVALID_ARGUMENT);
    REQUIRE(bursar_free(moved, stream) == BURSAR_INVALID_ARGUMENT);

    /* What the stack stands on goes first; the stack with its block stays. */
    REQUIRE(bursar_driver_close(driver) == BURSAR_OK && bursar_device_close(device) == BURSAR_OK);
    REQUIRE(bursar_reservation_close(reservation) == BURSAR_OK && bursar_stream_close(stream) == BURSAR_OK);
    REQUIRE(bursar_stack_close(stack) == BURSAR_STILL_HELD);
    REQUIRE(bursar_last_error(&error) == BURSAR_OK && error.requested == 2 * MIB);
    REQUIRE(bursar_free(block, stream) == BURSAR_INVALID_HANDLE);

    /* Its device is to be had from it, and is the same one. */
    REQUIRE(bursar_stack_device(stack, &again) == BURSAR_OK && again.id != device.id);
    REQUIRE(bursar_device_statistics(again, &counts) == BURSAR_OK && counts.current_bytes == 2 * MIB);
    REQUIRE(bursar_available(again, &after) == BURSAR_OK && after == before - 64 * MIB);
    REQUIRE(bursar_stream_create(again, 0, &other) == BURSAR_OK);
    REQUIRE(bursar_free(block, other) == BURSAR_OK);
    REQUIRE(bursar_stack_close(stack) == BURSAR_OK);
    REQUIRE(bursar_available(again, &after) == BURSAR_OK && after == before);
    REQUIRE(bursar_device_close(again) == BURSAR_OK && bursar_stream_close(other) == BURSAR_OK);
    observes();
    printf("all in any order\n");
    return 0;
}

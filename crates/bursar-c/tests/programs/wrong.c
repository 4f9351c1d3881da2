/* Y1: every call with arguments that make no sense. Each is an error value, and leaves what it was given as it was. */
#include "readings.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures = 0;

static void expect(bursar_status got, bursar_status wanted, const char *call, int line) {
    bursar_error error = {.struct_size = sizeof(error)};
    if (got != wanted) {
        fprintf(stderr, "line %d: %s is %s, not %s\n", line, call, bursar_status_name(got), bursar_status_name(wanted));
        failures++;
    }
    /* Each failure says something, in the thread where it happened. */
    if (got != BURSAR_OK) {
        if (bursar_last_error(&error) != BURSAR_OK || error.status != got || error.message[0] == 0) {
            fprintf(stderr, "line %d: %s left no error\n", line, call);
            failures++;
        }
    }
}
#define OK(call) expect(call, BURSAR_OK, #call, __LINE__)
#define ARGUMENT(call) expect(call, BURSAR_INVALID_ARGUMENT, #call, __LINE__)
#define HANDLE(call) expect(call, BURSAR_INVALID_HANDLE, #call, __LINE__)
#define IS(wanted, call) expect(call, wanted, #call, __LINE__)

static void that(int holds, const char *what, int line) {
    if (!holds) {
        fprintf(stderr, "line %d: %s does not hold\n", line, what);
        failures++;
    }
}
#define THAT(what) that(what, #what, __LINE__)

/* Numbers that are no handle of anything: null, garbage, and places that no table has. */
static const uint64_t NONE[] = {0, 1, 42, UINT64_MAX, (uint64_t)1 << 63, 0x0500000000000001u, 0x05ffffff00000001u,
                                0x0300000000000000u, 0x0400000900000001u, 0x0800000000000001u};
#define NONES (sizeof(NONE) / sizeof(NONE[0]))

/* Makes every call that takes a handle with one that is not of its kind. */
static void no_handles(uint64_t id, bursar_stack stack, bursar_stream stream) {
    bursar_driver driver = {id};
    bursar_device device = {id};
    bursar_stack no_stack = {id};
    bursar_stream no_stream = {id};
    bursar_block block = {id, 4096};
    bursar_block out = {7, 7};
    bursar_reservation reservation = {id};
    bursar_cancellation cancellation = {id};
    readings into = sized_readings();
    bursar_device new_device;
    bursar_stack new_stack;
    bursar_stream new_stream;
    bursar_reservation new_reservation;
    uint64_t number;
    void *raw;

    HANDLE(bursar_driver_read(driver, &into.driver));
    HANDLE(bursar_driver_close(driver));
    HANDLE(bursar_device_read(driver, 0, &into.device));
    HANDLE(bursar_device_memory_read(driver, 0, &into.memory));
    HANDLE(bursar_device_open(driver, 0, NULL, &new_device));
    THAT(new_device.id == 0);
    HANDLE(bursar_device_close(device));
    HANDLE(bursar_device_statistics(device, &into.counts));
    HANDLE(bursar_device_statistics_of(device, BURSAR_UNTAGGED, &into.counts));
    HANDLE(bursar_stack_open(device, NULL, &new_stack));
    THAT(new_stack.id == 0);
    HANDLE(bursar_stack_close(no_stack));
    HANDLE(bursar_stack_device(no_stack, &new_device));
    THAT(new_device.id == 0);
    HANDLE(bursar_stack_read(no_stack, &into.stack));
    HANDLE(bursar_device_sleep(device, NULL, &into.slept));
    HANDLE(bursar_device_wake(device, 0, &into.woken));
    HANDLE(bursar_device_sleep_read(device, &into.sleep));
    HANDLE(bursar_stack_trim(no_stack, 0, &number));
    HANDLE(bursar_granted_size(no_stack, 1, 0, &number));
    HANDLE(bursar_stream_create(device, 0, &new_stream));
    HANDLE(bursar_stream_adopt(device, NULL, &new_stream));
    THAT(new_stream.id == 0);
    HANDLE(bursar_stream_raw(no_stream, &raw));
    HANDLE(bursar_stream_synchronize(no_stream));
    HANDLE(bursar_stream_close(no_stream));
    HANDLE(bursar_allocate(no_stack, 1, 0, stream, BURSAR_UNTAGGED, &out));
    THAT(out.id == 0 && out.address == 0);
    HANDLE(bursar_allocate(stack, 1, 0, no_stream, BURSAR_UNTAGGED, &out));
    THAT(out.id == 0 && out.address == 0);
    HANDLE(bursar_free(block, stream));
    HANDLE(bursar_record_use(block, stream, BURSAR_READ));
    HANDLE(bursar_graph_memory_open(no_stack, &new_stack));
    THAT(new_stack.id == 0);
    HANDLE(bursar_graph_memory_release(no_stack, &number));
    HANDLE(bursar_graph_launched(no_stack, stream));
    HANDLE(bursar_capture_begin(no_stack, stream));
    HANDLE(bursar_capture_enter(no_stack, stream));
    HANDLE(bursar_capture_order(no_stack, stream, stream));
    HANDLE(bursar_capture_end(no_stack));
    HANDLE(bursar_reserve(device, 1, NULL, &new_reservation));
    HANDLE(bursar_share(device, &new_reservation));
    THAT(new_reservation.id == 0);
    HANDLE(bursar_available(device, &number));
    HANDLE(bursar_reservation_read(reservation, &into.reservation));
    HANDLE(bursar_reservation_close(reservation));
    HANDLE(bursar_cancel(cancellation));
    HANDLE(bursar_cancellation_close(cancellation));
}

/* Makes every call that takes a pointer with one that is null. */
static void null_pointers(bursar_driver driver, bursar_device device, bursar_stack stack, bursar_stream stream,
                          bursar_reservation reservation) {
    bursar_error error = {.struct_size = sizeof(error)};
    uint32_t tag;

    ARGUMENT(bursar_driver_open(NULL, NULL));
    ARGUMENT(bursar_driver_read(driver, NULL));
    ARGUMENT(bursar_device_read(driver, 0, NULL));
    ARGUMENT(bursar_device_memory_read(driver, 0, NULL));
    ARGUMENT(bursar_device_open(driver, 0, NULL, NULL));
    ARGUMENT(bursar_device_statistics(device, NULL));
    ARGUMENT(bursar_device_statistics_of(device, BURSAR_UNTAGGED, NULL));
    ARGUMENT(bursar_stack_open(device, NULL, NULL));
    ARGUMENT(bursar_stack_device(stack, NULL));
    ARGUMENT(bursar_stack_read(stack, NULL));
    ARGUMENT(bursar_device_sleep(device, NULL, NULL));
    ARGUMENT(bursar_device_wake(device, 0, NULL));
    ARGUMENT(bursar_device_sleep_read(device, NULL));
    OK(bursar_stack_trim(stack, 0, NULL));
    ARGUMENT(bursar_granted_size(stack, 1, 0, NULL));
    ARGUMENT(bursar_stream_create(device, 0, NULL));
    ARGUMENT(bursar_stream_adopt(device, NULL, NULL));
    ARGUMENT(bursar_stream_raw(stream, NULL));
    ARGUMENT(bursar_tag(NULL, &tag));
    ARGUMENT(bursar_tag("tag", NULL));
    ARGUMENT(bursar_allocate(stack, 1, 0, stream, BURSAR_UNTAGGED, NULL));
    ARGUMENT(bursar_graph_memory_open(stack, NULL));
    ARGUMENT(bursar_reserve(device, 1, NULL, NULL));
    ARGUMENT(bursar_share(device, NULL));
    ARGUMENT(bursar_available(device, NULL));
    ARGUMENT(bursar_reservation_read(reservation, NULL));
    ARGUMENT(bursar_cancellation_create(NULL));
    THAT(bursar_last_error(NULL) == BURSAR_INVALID_ARGUMENT);
    ARGUMENT(bursar_last_refusal(NULL, 1, NULL));
    THAT(bursar_last_error(&error) == BURSAR_OK && strstr(error.message, "`buffer`") != NULL);
    THAT(bursar_last_refusal(NULL, 0, NULL) == BURSAR_OK);
}

/* Passes each structure with sizes that are not its own. */
static void wrong_sizes(bursar_driver driver, bursar_device device, bursar_stack stack, bursar_reservation reservation) {
    size_t wrong[] = {0, 1, 7, 4096, SIZE_MAX};
    size_t at;
    bursar_error error;
    bursar_driver_options driver_options;
    bursar_driver_facts driver_facts;
    bursar_device_facts facts;
    bursar_device_memory memory;
    bursar_device_options device_options;
    bursar_statistics counts;
    bursar_stack_options stack_options;
    bursar_stack_reading stack_reading;
    bursar_sleep_options sleep_options;
    bursar_sleep_report slept;
    bursar_wake_report woken;
    bursar_sleep_reading sleep_reading;
    bursar_reserve_options reserve_options;
    bursar_reservation_reading reading;
    bursar_driver new_driver;
    bursar_device new_device;
    bursar_stack new_stack;
    bursar_reservation new_reservation;

    memset(&driver_options, 0, sizeof(driver_options));
    memset(&device_options, 0, sizeof(device_options));
    memset(&stack_options, 0, sizeof(stack_options));
    memset(&sleep_options, 0, sizeof(sleep_options));
    memset(&reserve_options, 0, sizeof(reserve_options));
    for (at = 0; at < sizeof(wrong) / sizeof(wrong[0]); at++) {
        error.struct_size = wrong[at];
        THAT(bursar_last_error(&error) == BURSAR_INVALID_ARGUMENT);
        driver_options.struct_size = wrong[at];
        ARGUMENT(bursar_driver_open(&driver_options, &new_driver));
        THAT(new_driver.id == 0);
        driver_facts.struct_size = wrong[at];
        ARGUMENT(bursar_driver_read(driver, &driver_facts));
        facts.struct_size = wrong[at];
        ARGUMENT(bursar_device_read(driver, 0, &facts));
        memory.struct_size = wrong[at];
        ARGUMENT(bursar_device_memory_read(driver, 0, &memory));
        device_options.struct_size = wrong[at];
        ARGUMENT(bursar_device_open(driver, 0, &device_options, &new_device));
        THAT(new_device.id == 0);
        counts.struct_size = wrong[at];
        ARGUMENT(bursar_device_statistics(device, &counts));
        ARGUMENT(bursar_device_statistics_of(device, BURSAR_UNTAGGED, &counts));
        stack_options.struct_size = wrong[at];
        ARGUMENT(bursar_stack_open(device, &stack_options, &new_stack));
        THAT(new_stack.id == 0);
        stack_reading.struct_size = wrong[at];
        ARGUMENT(bursar_stack_read(stack, &stack_reading));
        sleep_options.struct_size = wrong[at];
        slept.struct_size = sizeof(slept);
        ARGUMENT(bursar_device_sleep(device, &sleep_options, &slept));
        slept.struct_size = wrong[at];
        ARGUMENT(bursar_device_sleep(device, NULL, &slept));
        woken.struct_size = wrong[at];
        ARGUMENT(bursar_device_wake(device, 0, &woken));
        sleep_reading.struct_size = wrong[at];
        ARGUMENT(bursar_device_sleep_read(device, &sleep_reading));
        reserve_options.struct_size = wrong[at];
        ARGUMENT(bursar_reserve(device, 1, &reserve_options, &new_reservation));
        THAT(new_reservation.id == 0);
        reading.struct_size = wrong[at];
        ARGUMENT(bursar_reservation_read(reservation, &reading));
        error.struct_size = sizeof(error);
        THAT(bursar_last_error(&error) == BURSAR_OK);
        THAT(error.requested == wrong[at] && error.limit == sizeof(reading));
        THAT(reading.struct_size == wrong[at]);
    }
}

/* Passes values that make no sense. */
static void wrong_values(bursar_driver driver, bursar_device device, bursar_stack stack, bursar_stream stream,
                         bursar_block block, bursar_reservation of_other) {
    bursar_error error = {.struct_size = sizeof(error)};
    bursar_driver_options driver_options = {.struct_size = sizeof(driver_options)};
    bursar_device_options device_options = {.struct_size = sizeof(device_options)};
    bursar_stack_options options = {.struct_size = sizeof(options)};
    bursar_reserve_options reserve = {.struct_size = sizeof(reserve)};
    bursar_device_facts facts = {.struct_size = sizeof(facts)};
    bursar_statistics counts = {.struct_size = sizeof(counts)};
    bursar_block moved = block;
    bursar_block out;
    bursar_driver new_driver;
    bursar_device new_device;
    bursar_stack new_stack;
    bursar_stream new_stream;
    bursar_reservation new_reservation;
    uint32_t tag;
    uint64_t number;
    char name[50];

    IS(BURSAR_NO_DEVICE, bursar_device_read(driver, 99, &facts));
    OK(bursar_last_error(&error));
    THAT(error.requested == 99 && error.limit == 2);
    IS(BURSAR_NO_DEVICE, bursar_device_open(driver, UINT32_MAX, NULL, &new_device));
    driver_options.choice = 3;
    ARGUMENT(bursar_driver_open(&driver_options, &new_driver));
    driver_options.choice = BURSAR_DRIVER_SIMULATED;
    driver_options.simulated_devices = "many";
    IS(BURSAR_NO_DRIVER, bursar_driver_open(&driver_options, &new_driver));
    driver_options.simulated_devices = "\xff\xfe";
    ARGUMENT(bursar_driver_open(&driver_options, &new_driver));
    driver_options.simulated_devices = NULL;
    driver_options.observes_only = 2;
    ARGUMENT(bursar_driver_open(&driver_options, &new_driver));
    device_options.without_statistics = 2;
    ARGUMENT(bursar_device_open(driver, 0, &device_options, &new_device));
    device_options.without_statistics = 0;
    device_options.reserved = 1;
    ARGUMENT(bursar_device_open(driver, 0, &device_options, &new_device));

    options.kind = 3;
    ARGUMENT(bursar_stack_open(device, &options, &new_stack));
    options.kind = BURSAR_STACK_POOL;
    options.account = 3;
    ARGUMENT(bursar_stack_open(device, &options, &new_stack));
    options.account = BURSAR_ACCOUNT_RESERVATION;
    HANDLE(bursar_stack_open(device, &options, &new_stack));
    options.reservation = of_other;
    ARGUMENT(bursar_stack_open(device, &options, &new_stack));
    options.account = BURSAR_ACCOUNT_NONE;
    ARGUMENT(bursar_stack_open(device, &options, &new_stack));
    options.reservation.id = 0;
    options.tenant = "tenant";
    ARGUMENT(bursar_stack_open(device, &options, &new_stack));
    memset(name, 't', sizeof(name) - 1);
    name[sizeof(name) - 1] = 0;
    options.account = BURSAR_ACCOUNT_LEDGER;
    options.tenant = name;
    ARGUMENT(bursar_stack_open(device, &options, &new_stack));
    OK(bursar_last_error(&error));
    THAT(error.requested == 49 && error.limit == 48);
    reserve.tenant = name;
    ARGUMENT(bursar_reserve(device, 1, &reserve, &new_reservation));
    reserve.tenant = options.tenant = name + 1;
    OK(bursar_stack_open(device, &options, &new_stack));
    OK(bursar_stack_close(new_stack));
    OK(bursar_reserve(device, 1, &reserve, &new_reservation));
    OK(bursar_reservation_close(new_reservation));
    reserve.tenant = options.tenant = NULL;
    options.account = BURSAR_ACCOUNT_NONE;
    options.wait_before_growing = 2;
    ARGUMENT(bursar_stack_open(device, &options, &new_stack));
    THAT(new_stack.id == 0);

    ARGUMENT(bursar_stream_create(device, 1000, &new_stream));
    IS(BURSAR_INVALID_STREAM, bursar_stream_adopt(device, (void *)2, &new_stream));
    ARGUMENT(bursar_tag("\xff", &tag));

    ARGUMENT(bursar_allocate(stack, 0, 0, stream, BURSAR_UNTAGGED, &out));
    ARGUMENT(bursar_allocate(stack, (uint64_t)1 << 63, 0, stream, BURSAR_UNTAGGED, &out));
    IS(BURSAR_OUT_OF_MEMORY, bursar_allocate(stack, (uint64_t)1 << 62, 0, stream, BURSAR_UNTAGGED, &out));
    ARGUMENT(bursar_allocate(stack, UINT64_MAX, 0, stream, BURSAR_UNTAGGED, &out));
    OK(bursar_last_error(&error));
    THAT(error.requested == UINT64_MAX && error.is_capacity == 0);
    ARGUMENT(bursar_allocate(stack, 1, 3, stream, BURSAR_UNTAGGED, &out));
    ARGUMENT(bursar_allocate(stack, 1, (uint64_t)1 << 40, stream, BURSAR_UNTAGGED, &out));
    ARGUMENT(bursar_allocate(stack, 1, 0, stream, UINT32_MAX, &out));
    ARGUMENT(bursar_granted_size(stack, 0, 0, &number));
    ARGUMENT(bursar_device_statistics_of(device, UINT32_MAX, &counts));
    ARGUMENT(bursar_record_use(block, stream, 2));
    moved.address++;
    ARGUMENT(bursar_free(moved, stream));

    reserve.priority = 256;
    ARGUMENT(bursar_reserve(device, 1, &reserve, &new_reservation));
    reserve.priority = 0;
    reserve.keep_free_millionths = 1000001;
    ARGUMENT(bursar_reserve(device, 1, &reserve, &new_reservation));
    reserve.keep_free_millionths = 0;
    reserve.label = "\xff";
    ARGUMENT(bursar_reserve(device, 1, &reserve, &new_reservation));
    reserve.label = NULL;
    reserve.tenant = "a name that is much too long for the forty-eight bytes there are";
    ARGUMENT(bursar_reserve(device, 1, &reserve, &new_reservation));
    reserve.tenant = NULL;
    reserve.cancellation.id = stack.id;
    HANDLE(bursar_reserve(device, 1, &reserve, &new_reservation));
    reserve.cancellation.id = 0;
    IS(BURSAR_OUT_OF_BUDGET, bursar_reserve(device, UINT64_MAX, NULL, &new_reservation));
    OK(bursar_last_error(&error));
    THAT(error.requested == UINT64_MAX && error.limit > 0 && error.is_capacity == 1);
    reserve.timeout_ms = 5;
    IS(BURSAR_OUT_OF_BUDGET, bursar_reserve(device, UINT64_MAX, &reserve, &new_reservation));
    THAT(new_reservation.id == 0);
    THAT(bursar_status_name(-1) == NULL && bursar_status_name(1000) == NULL);
}

int main(void) {
    bursar_driver_options driver_options = {.struct_size = sizeof(driver_options)};
    bursar_stack_options unlimited = {.struct_size = sizeof(unlimited)};
    bursar_driver driver;
    bursar_device device, second;
    bursar_stack stack;
    bursar_stream stream, of_second;
    bursar_block block, small;
    bursar_reservation reservation, of_second_device;
    bursar_cancellation cancellation;
    bursar_error error = {.struct_size = sizeof(error)};
    uint64_t ids[7], stale[7];
    size_t at;

    THAT(bursar_interface() == BURSAR_INTERFACE && bursar_version()[0] != 0);
    THAT(bursar_last_error(&error) == BURSAR_INVALID_ARGUMENT);
    driver_options.choice = BURSAR_DRIVER_SIMULATED;
    driver_options.simulated_devices = "2x1GiB";
    OK(bursar_driver_open(&driver_options, &driver));
    OK(bursar_device_open(driver, 0, NULL, &device));
    OK(bursar_device_open(driver, 1, NULL, &second));
    unlimited.limit = (uint64_t)1 << 29;
    OK(bursar_stack_open(device, &unlimited, &stack));
    OK(bursar_stream_create(device, 0, &stream));
    OK(bursar_stream_create(second, 0, &of_second));
    OK(bursar_allocate(stack, 4096, 4096, stream, BURSAR_UNTAGGED, &block));
    THAT(block.address % 4096 == 0);
    OK(bursar_reserve(device, 4096, NULL, &reservation));
    OK(bursar_reserve(second, 4096, NULL, &of_second_device));
    OK(bursar_cancellation_create(&cancellation));

    for (at = 0; at < NONES; at++)
        no_handles(NONE[at], stack, stream);
    null_pointers(driver, device, stack, stream, reservation);
    wrong_sizes(driver, device, stack, reservation);
    wrong_values(driver, device, stack, stream, block, of_second_device);
    IS(BURSAR_INVALID_STREAM, bursar_allocate(stack, 1, 0, of_second, BURSAR_UNTAGGED, &small));
    IS(BURSAR_INVALID_STREAM, bursar_free(block, of_second));
    IS(BURSAR_INVALID_STREAM, bursar_record_use(block, of_second, BURSAR_READ));
    IS(BURSAR_STILL_HELD, bursar_stack_close(stack));

    /* Each handle is of its own kind alone. */
    ids[0] = driver.id, ids[1] = device.id, ids[2] = stack.id, ids[3] = stream.id, ids[4] = block.id;
    ids[5] = reservation.id, ids[6] = cancellation.id;
    for (at = 0; at < 7; at++) {
        bursar_stack as_stack;
        bursar_stream as_stream;
        bursar_block as_block;
        bursar_reservation as_reservation;
        as_stack.id = as_stream.id = as_block.id = as_reservation.id = ids[at];
        as_block.address = 4096;
        if (ids[at] != stack.id)
            HANDLE(bursar_stack_close(as_stack));
        if (ids[at] != stream.id)
            HANDLE(bursar_stream_close(as_stream));
        if (ids[at] != block.id)
            HANDLE(bursar_free(as_block, stream));
        if (ids[at] != reservation.id)
            HANDLE(bursar_reservation_close(as_reservation));
    }

    /* Nothing of that did anything: what was open is, and closes once. */
    OK(bursar_free(block, stream));
    HANDLE(bursar_free(block, stream));
    OK(bursar_cancel(cancellation));
    OK(bursar_cancellation_close(cancellation));
    OK(bursar_reservation_close(reservation));
    OK(bursar_reservation_close(of_second_device));
    OK(bursar_stack_close(stack));
    OK(bursar_stream_close(stream));
    OK(bursar_stream_close(of_second));
    OK(bursar_device_close(device));
    OK(bursar_device_close(second));
    OK(bursar_driver_close(driver));
    memcpy(stale, ids, sizeof(stale));
    for (at = 0; at < 7; at++)
        no_handles(stale[at], stack, stream);

    if (failures == 0)
        printf("all refused\n");
    return failures != 0;
}

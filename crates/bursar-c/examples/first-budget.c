/*
 * A budget of 16 GiB on the first device, GPU or simulated: what fits is granted, what does not is refused and explained, and
 * memory for a later stage is set aside before it is needed.
 *
 *     cc -o first-budget first-budget.c $(pkg-config --cflags --libs bursar)
 */
#include <bursar.h>
#include <stdio.h>
#include <stdlib.h>

static const uint64_t GIB = (uint64_t)1 << 30;

/* Ends the program where a call fails. */
static void check(bursar_status status, const char *call) {
    bursar_error error = {.struct_size = sizeof(error)};
    if (status != BURSAR_OK) {
        bursar_last_error(&error);
        fprintf(stderr, "%s: %s: %s\n", call, bursar_status_name(status), error.message);
        exit(1);
    }
}
#define CHECK(call) check(call, #call)

/* Tells why a request was refused: its numbers, and the whole explanation. */
static void explain(void) {
    bursar_error error = {.struct_size = sizeof(error)};
    size_t length = 0;
    char *text;
    CHECK(bursar_last_error(&error));
    printf("refused: %s, %.1f GiB requested, %.1f GiB of %.1f GiB left\n", bursar_status_name(error.status),
           (double)error.requested / (double)GIB, (double)error.available / (double)GIB,
           (double)error.limit / (double)GIB);
    CHECK(bursar_last_refusal(NULL, 0, &length));
    text = malloc(length + 1);
    if (text != NULL) {
        CHECK(bursar_last_refusal(text, length + 1, NULL));
        printf("%s\n", text);
    }
    free(text);
}

int main(void) {
    bursar_driver driver;
    bursar_driver_facts driver_facts = {.struct_size = sizeof(driver_facts)};
    bursar_device device;
    bursar_device_facts facts = {.struct_size = sizeof(facts)};
    bursar_stack_options options = {.struct_size = sizeof(options)};
    bursar_stack stack;
    bursar_stream stream, other;
    bursar_block weights, cache, batch;
    bursar_reserve_options later = {.struct_size = sizeof(later)};
    bursar_reservation reservation;
    bursar_statistics counts = {.struct_size = sizeof(counts)};
    uint32_t weights_tag, cache_tag;
    uint64_t available, released;

    CHECK(bursar_driver_open(NULL, &driver));
    CHECK(bursar_driver_read(driver, &driver_facts));
    CHECK(bursar_device_read(driver, 0, &facts));
    printf("%s: the first of %u device(s) is %s with %.0f GiB\n", driver_facts.is_simulated ? "simulated" : "CUDA",
           (unsigned)driver_facts.device_count, facts.name, (double)facts.total / (double)GIB);
    if (driver_facts.instead_of_cuda[0] != 0)
        fprintf(stderr, "CUDA is not used: %s\n", driver_facts.instead_of_cuda);

    CHECK(bursar_device_open(driver, 0, NULL, &device));
    options.limit = 16 * GIB;
    CHECK(bursar_stack_open(device, &options, &stack));
    CHECK(bursar_stream_create(device, 0, &stream));
    CHECK(bursar_stream_create(device, 0, &other));
    CHECK(bursar_tag("weights", &weights_tag));
    CHECK(bursar_tag("kv-cache", &cache_tag));

    CHECK(bursar_allocate(stack, 12 * GIB, 0, stream, weights_tag, &weights));
    CHECK(bursar_allocate(stack, 3 * GIB, 0, stream, cache_tag, &cache));
    if (bursar_allocate(stack, 2 * GIB, 0, stream, BURSAR_UNTAGGED, &batch) != BURSAR_OUT_OF_BUDGET)
        return 1;
    explain();

    /* Work on another stream reads the cache; its free then comes after that work. */
    CHECK(bursar_record_use(cache, other, BURSAR_READ));
    CHECK(bursar_free(cache, stream));
    CHECK(bursar_allocate(stack, 2 * GIB, 0, stream, BURSAR_UNTAGGED, &batch));
    if (bursar_free(cache, stream) != BURSAR_INVALID_HANDLE)
        return 1;

    /* Another stage waits up to a second for memory of its own, in the ledger that all processes share. */
    later.timeout_ms = 1000;
    later.label = "later";
    CHECK(bursar_available(device, &available));
    CHECK(bursar_reserve(device, GIB, &later, &reservation));
    printf("%.0f GiB could be set aside, 1 GiB was\n", (double)available / (double)GIB);

    CHECK(bursar_device_statistics(device, &counts));
    printf("%.0f GiB in %u blocks, %u refused\n", (double)counts.current_bytes / (double)GIB,
           (unsigned)counts.current_blocks, (unsigned)counts.refused);

    CHECK(bursar_free(batch, stream));
    CHECK(bursar_free(weights, stream));
    CHECK(bursar_stack_trim(stack, 0, &released));
    CHECK(bursar_reservation_close(reservation));
    CHECK(bursar_stack_close(stack));
    CHECK(bursar_stream_close(other));
    CHECK(bursar_stream_close(stream));
    CHECK(bursar_device_close(device));
    CHECK(bursar_driver_close(driver));
    printf("all closed\n");
    return 0;
}

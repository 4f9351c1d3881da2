/* Six threads that open and close one device, each by itself, with memory of every kind, first while nobody else has the device's
   context and then while the program itself has retained it. No call is told of a context that another thread has ended, and once all is
   closed all memory is back: what the driver's own pool has reserved too. */
#include "cuda.h"
#include "require.h"
#include <pthread.h>

#define THREADS 6
#define ROUNDS 100
#define BLOCKS 12

static bursar_driver common;

static uint32_t below(uint64_t *state, uint32_t limit) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % limit;
}

/* Makes and frees blocks of a stack on two streams, in an order of its own. */
static void use(bursar_stack stack, const bursar_stream streams[2], uint64_t *random) {
    bursar_block blocks[BLOCKS];
    uint32_t at, count = 1 + below(random, BLOCKS);
    uint64_t trimmed;
    for (at = 0; at < count; ++at) {
        uint64_t bytes = 1 + below(random, 8u << 20);
        REQUIRE(bursar_allocate(stack, bytes, 0, streams[below(random, 2)], BURSAR_UNTAGGED, &blocks[at]) == BURSAR_OK);
    }
    for (at = 0; at < count; ++at) {
        REQUIRE(bursar_free(blocks[at], streams[below(random, 2)]) == BURSAR_OK);
        if (below(random, 8) == 0)
            REQUIRE(bursar_stack_trim(stack, 0, &trimmed) == BURSAR_OK);
    }
}

static void *opens_and_closes(void *seed) {
    uint64_t random = (uint64_t)(size_t)seed;
    int round, at;
    for (round = 0; round < ROUNDS; ++round) {
        bursar_driver driver = common;
        bursar_device device;
        bursar_stream streams[2];
        bursar_stack stack;
        bursar_stack_options options = {.struct_size = sizeof(options)};
        uint64_t available;
        int has_own = below(&random, 2) == 0;
        if (has_own)
            REQUIRE(bursar_driver_open(NULL, &driver) == BURSAR_OK);
        REQUIRE(bursar_device_open(driver, 0, NULL, &device) == BURSAR_OK);
        if (has_own)
            REQUIRE(bursar_driver_close(driver) == BURSAR_OK);
        if (below(&random, 3) == 0)
            REQUIRE(bursar_available(device, &available) == BURSAR_OK);
        options.kind = below(&random, 3);
        options.account = below(&random, 2);
        REQUIRE(bursar_stack_open(device, &options, &stack) == BURSAR_OK);
        for (at = 0; at < 2; ++at)
            REQUIRE(bursar_stream_create(device, 0, &streams[at]) == BURSAR_OK);
        use(stack, streams, &random);
        for (at = 0; at < 2; ++at)
            REQUIRE(bursar_stream_close(streams[at]) == BURSAR_OK);
        REQUIRE(bursar_stack_close(stack) == BURSAR_OK && bursar_device_close(device) == BURSAR_OK);
    }
    return NULL;
}

static void all_threads(void) {
    bursar_device_memory before = {.struct_size = sizeof(before)}, after = {.struct_size = sizeof(after)};
    pthread_t threads[THREADS];
    size_t at;
    REQUIRE(bursar_device_memory_read(common, 0, &before) == BURSAR_OK);
    for (at = 0; at < THREADS; ++at)
        REQUIRE(pthread_create(&threads[at], NULL, opens_and_closes, (void *)(at + 1)) == 0);
    for (at = 0; at < THREADS; ++at)
        REQUIRE(pthread_join(threads[at], NULL) == 0);
    REQUIRE(bursar_device_memory_read(common, 0, &after) == BURSAR_OK && after.free == before.free);
}

int main(void) {
    CUcontext context;
    REQUIRE(bursar_driver_open(NULL, &common) == BURSAR_OK);
    all_threads();
    REQUIRE(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0);
    all_threads();
    REQUIRE(bursar_driver_close(common) == BURSAR_OK);
    printf("all came back\n");
    return 0;
}

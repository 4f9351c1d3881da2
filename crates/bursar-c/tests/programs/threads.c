/* Calls from everywhere that a program can make them: from many threads at once, from the destructors that run when a thread
   ends, and on blocks that another thread allocated. */
#include "require.h"
#include <bursar.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define THREADS 8
#define ROUNDS 2000

static bursar_stack stack;
static bursar_stream stream;
static pthread_key_t key;
static bursar_block handed[THREADS][ROUNDS];

/* Runs when its thread ends, after or before the library's own destructors of that thread. */
static void at_thread_end(void *value) {
    bursar_block *block = value;
    bursar_block last;
    REQUIRE(bursar_free(*block, stream) == BURSAR_OK);
    REQUIRE(bursar_free(*block, stream) == BURSAR_INVALID_HANDLE);
    REQUIRE(bursar_allocate(stack, 4096, 0, stream, BURSAR_UNTAGGED, &last) == BURSAR_OK);
    REQUIRE(bursar_free(last, stream) == BURSAR_OK);
    free(block);
}

static void *allocates(void *place) {
    bursar_block *blocks = place;
    bursar_block *own = malloc(sizeof(*own));
    bursar_error error = {.struct_size = sizeof(error)};
    int round;
    REQUIRE(own != NULL && pthread_setspecific(key, own) == 0);
    REQUIRE(bursar_last_error(&error) == BURSAR_INVALID_ARGUMENT);
    REQUIRE(bursar_allocate(stack, 1024, 0, stream, BURSAR_UNTAGGED, own) == BURSAR_OK);
    for (round = 0; round < ROUNDS; round++)
        REQUIRE(bursar_allocate(stack, 512, 0, stream, BURSAR_UNTAGGED, &blocks[round]) == BURSAR_OK);
    return NULL;
}

int main(void) {
    bursar_driver driver;
    bursar_device device;
    bursar_statistics counts = {.struct_size = sizeof(counts)};
    bursar_error error = {.struct_size = sizeof(error)};
    pthread_t threads[THREADS];
    int at, round, generation;

    REQUIRE(bursar_driver_open(NULL, &driver) == BURSAR_OK);
    REQUIRE(bursar_device_open(driver, 0, NULL, &device) == BURSAR_OK);
    REQUIRE(bursar_stack_open(device, NULL, &stack) == BURSAR_OK);
    REQUIRE(bursar_stream_create(device, 0, &stream) == BURSAR_OK);
    REQUIRE(pthread_key_create(&key, at_thread_end) == 0);
    for (generation = 0; generation < 3; generation++) {
        for (at = 0; at < THREADS; at++)
            REQUIRE(pthread_create(&threads[at], NULL, allocates, handed[at]) == 0);
        for (at = 0; at < THREADS; at++)
            REQUIRE(pthread_join(threads[at], NULL) == 0);
        REQUIRE(bursar_device_statistics(device, &counts) == BURSAR_OK);
        REQUIRE(counts.current_blocks == THREADS * ROUNDS && counts.current_bytes == counts.current_blocks * 512);
        REQUIRE(bursar_stack_close(stack) == BURSAR_STILL_HELD);
        REQUIRE(bursar_last_error(&error) == BURSAR_OK && error.requested == THREADS * ROUNDS * 512);
        for (at = 0; at < THREADS; at++)
            for (round = 0; round < ROUNDS; round++)
                REQUIRE(bursar_free(handed[at][round], stream) == BURSAR_OK);
    }
    REQUIRE(bursar_device_statistics(device, &counts) == BURSAR_OK && counts.current_blocks == 0);
    REQUIRE(bursar_stack_close(stack) == BURSAR_OK && bursar_stream_close(stream) == BURSAR_OK);
    REQUIRE(bursar_device_close(device) == BURSAR_OK && bursar_driver_close(driver) == BURSAR_OK);
    printf("all threads ended\n");
    return 0;
}

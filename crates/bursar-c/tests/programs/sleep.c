/* Y1, Z5: memory sleeps and wakes, at the same address and with the same contents, as a program that uses the driver sees it. */
#include "cuda.h"
#include "readings.h"
#include "require.h"
#include <string.h>

enum { BYTES = 4 << 20 };
static char before[BYTES], after[BYTES];

int main(void) {
    bursar_driver_options driver_options = {.struct_size = sizeof(driver_options)};
    bursar_stack_options stack_options = {.struct_size = sizeof(stack_options)};
    bursar_sleep_options sleep_options = {.struct_size = sizeof(sleep_options)};
    readings into = sized_readings();
    bursar_driver driver;
    bursar_device device;
    bursar_stack stack;
    bursar_stream stream;
    bursar_block block, more;
    CUcontext context;

    REQUIRE(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
    driver_options.choice = BURSAR_DRIVER_CUDA;
    REQUIRE(bursar_driver_open(&driver_options, &driver) == BURSAR_OK);
    REQUIRE(bursar_device_open(driver, 0, NULL, &device) == BURSAR_OK);
    REQUIRE(bursar_device_sleep(device, NULL, &into.slept) == BURSAR_UNSUPPORTED);
    stack_options.limit = BYTES;
    REQUIRE(bursar_stack_open(device, &stack_options, &stack) == BURSAR_OK);
    REQUIRE(bursar_stream_create(device, 0, &stream) == BURSAR_OK);
    REQUIRE(bursar_allocate(stack, BYTES, 0, stream, BURSAR_UNTAGGED, &block) == BURSAR_OK);
    for (int at = 0; at < BYTES; at++)
        before[at] = (char)(at * 7 + at / 251);
    REQUIRE(cuMemcpyHtoD_v2(block.address, before, BYTES) == 0);

    /* Twice: the second finds its host memory, and keeps its place. */
    for (int round = 0; round < 2; round++) {
        sleep_options.keep_place = (uint32_t)round;
        REQUIRE(bursar_device_sleep(device, &sleep_options, &into.slept) == BURSAR_OK);
        REQUIRE(into.slept.released == BYTES && into.slept.saved == BYTES && into.slept.discarded == 0 && into.slept.kept == 0);
        REQUIRE(bursar_record_use(block, stream, BURSAR_READ) == BURSAR_ASLEEP);
        REQUIRE(bursar_device_sleep_read(device, &into.sleep) == BURSAR_OK);
        REQUIRE(into.sleep.state == BURSAR_SLEEP_ASLEEP && into.sleep.asleep == BYTES && into.sleep.on_host >= BYTES);
        REQUIRE(bursar_stack_read(stack, &into.stack) == BURSAR_OK && into.stack.held == 0);
        REQUIRE(bursar_allocate(stack, 1, 0, stream, BURSAR_UNTAGGED, &more) == BURSAR_ASLEEP);
        REQUIRE(bursar_device_wake(device, 0, &into.woken) == BURSAR_OK);
        REQUIRE(into.woken.taken == BYTES && into.woken.restored == BYTES);
        REQUIRE(bursar_device_sleep_read(device, &into.sleep) == BURSAR_OK && into.sleep.state == BURSAR_SLEEP_AWAKE);
        memset(after, 0, BYTES);
        REQUIRE(cuMemcpyDtoH_v2(after, block.address, BYTES) == 0 && memcmp(before, after, BYTES) == 0);
    }

    sleep_options.discard = 1;
    REQUIRE(bursar_device_sleep(device, &sleep_options, &into.slept) == BURSAR_OK);
    REQUIRE(into.slept.saved == 0 && into.slept.discarded == BYTES);
    REQUIRE(bursar_device_wake(device, 0, &into.woken) == BURSAR_OK && into.woken.restored == 0);

    REQUIRE(bursar_free(block, stream) == BURSAR_OK);
    REQUIRE(bursar_stream_close(stream) == BURSAR_OK && bursar_stack_close(stack) == BURSAR_OK);
    REQUIRE(bursar_device_close(device) == BURSAR_OK && bursar_driver_close(driver) == BURSAR_OK);
    printf("asleep and awake\n");
    return 0;
}

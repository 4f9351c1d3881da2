/* Memory on a stream that the program made with the driver itself, and a race of uses that Bursar puts in order. */
#include "cuda.h"
#include "require.h"
#include <bursar.h>
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    bursar_driver_options options = {.struct_size = sizeof(options)};
    bursar_driver_facts facts = {.struct_size = sizeof(facts)};
    bursar_driver driver;
    bursar_device device;
    bursar_stack stack;
    bursar_stream adopted, other, standard;
    bursar_block block, again;
    CUcontext context;
    CUstream raw;
    void *of_other, *event;
    unsigned char bytes[16] = {0};
    int round;

    REQUIRE(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
    REQUIRE(cuStreamCreate(&raw, 1) == 0 && cuEventCreate(&event, 2) == 0);
    options.choice = BURSAR_DRIVER_CUDA;
    REQUIRE(bursar_driver_open(&options, &driver) == BURSAR_OK);
    REQUIRE(bursar_driver_read(driver, &facts) == BURSAR_OK && facts.is_simulated == 0);
    REQUIRE(bursar_device_open(driver, 0, NULL, &device) == BURSAR_OK);
    REQUIRE(bursar_stack_open(device, NULL, &stack) == BURSAR_OK);
    REQUIRE(bursar_stream_adopt(device, raw, &adopted) == BURSAR_OK);
    REQUIRE(bursar_stream_adopt(device, NULL, &standard) == BURSAR_OK);
    REQUIRE(bursar_stream_create(device, 0, &other) == BURSAR_OK);
    REQUIRE(bursar_stream_raw(other, &of_other) == BURSAR_OK && of_other != NULL);

    for (round = 0; round < 100; round++) {
        REQUIRE(bursar_allocate(stack, 4096, 0, adopted, BURSAR_UNTAGGED, &block) == BURSAR_OK);
        REQUIRE(cuMemsetD8Async(block.address, 7, 4096, raw) == 0);
        /* The other stream writes after the first one, and the free comes after both. */
        REQUIRE(cuEventRecord(event, raw) == 0 && cuStreamWaitEvent((CUstream)of_other, event, 0) == 0);
        REQUIRE(cuMemsetD8Async(block.address, 8, 4096, (CUstream)of_other) == 0);
        REQUIRE(bursar_record_use(block, other, BURSAR_WRITE) == BURSAR_OK);
        REQUIRE(bursar_free(block, adopted) == BURSAR_OK);
        REQUIRE(bursar_allocate(stack, 4096, 0, adopted, BURSAR_UNTAGGED, &again) == BURSAR_OK);
        REQUIRE(cuMemsetD8Async(again.address, 9, 4096, raw) == 0);
        REQUIRE(cuStreamSynchronize(raw) == 0 && bursar_stream_synchronize(other) == BURSAR_OK);
        REQUIRE(cuMemcpyDtoH_v2(bytes, again.address, sizeof(bytes)) == 0 && bytes[0] == 9 && bytes[15] == 9);
        REQUIRE(bursar_free(again, adopted) == BURSAR_OK);
    }
    REQUIRE(bursar_allocate(stack, 4096, 0, standard, BURSAR_UNTAGGED, &block) == BURSAR_OK);
    REQUIRE(bursar_free(block, standard) == BURSAR_OK);

    /* The adoption ends before the stream does; its memory can be had again. */
    REQUIRE(bursar_allocate(stack, 4096, 0, adopted, BURSAR_UNTAGGED, &block) == BURSAR_OK);
    REQUIRE(bursar_stream_close(adopted) == BURSAR_OK && cuStreamDestroy_v2(raw) == 0);
    REQUIRE(bursar_allocate(stack, 4096, 0, adopted, BURSAR_UNTAGGED, &again) == BURSAR_INVALID_HANDLE);
    REQUIRE(bursar_free(block, other) == BURSAR_OK);
    REQUIRE(bursar_stack_close(stack) == BURSAR_OK);
    REQUIRE(bursar_stream_close(other) == BURSAR_OK && bursar_stream_close(standard) == BURSAR_OK);
    REQUIRE(bursar_device_close(device) == BURSAR_OK && bursar_driver_close(driver) == BURSAR_OK);
    printf("all in order\n");
    return 0;
}

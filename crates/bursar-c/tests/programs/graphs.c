/* Y1: graphs that the program captures with the driver itself, with memory that stays where it is: forks, graphs that share
 * one memory, and its end. */
#include "cuda.h"
#include "require.h"

enum { RELAXED = 2, GRAPHS = 4 };
static const uint64_t BYTES = (uint64_t)1 << 20;

static CUgraphExec instantiated(CUstream stream) {
    CUgraph graph;
    CUgraphExec exec;

    REQUIRE(cuStreamEndCapture(stream, &graph) == 0);
    REQUIRE(cuGraphInstantiateWithFlags(&exec, graph, 0) == 0 && cuGraphDestroy(graph) == 0);
    return exec;
}

/* Refuses what is in the wrong order, or the wrong kind of stack. */
static void refused(bursar_stack stack, bursar_stack memory, bursar_stream main, bursar_stream side) {
    bursar_stream none = {0};
    bursar_block block;

    REQUIRE(bursar_capture_begin(stack, main) == BURSAR_INVALID_ARGUMENT);
    REQUIRE(bursar_capture_end(memory) == BURSAR_INVALID_ARGUMENT);
    REQUIRE(bursar_capture_enter(memory, side) == BURSAR_INVALID_ARGUMENT);
    REQUIRE(bursar_capture_order(memory, main, side) == BURSAR_INVALID_ARGUMENT);
    REQUIRE(bursar_graph_memory_release(stack, NULL) == BURSAR_INVALID_ARGUMENT);
    REQUIRE(bursar_graph_launched(stack, main) == BURSAR_INVALID_ARGUMENT);
    REQUIRE(bursar_allocate(memory, BYTES, 0, main, BURSAR_UNTAGGED, &block) == BURSAR_INVALID_STREAM);
    REQUIRE(bursar_capture_begin(memory, none) == BURSAR_OK);
    REQUIRE(bursar_capture_begin(memory, main) == BURSAR_INVALID_ARGUMENT);
    REQUIRE(bursar_capture_order(memory, main, side) == BURSAR_INVALID_ARGUMENT);
    REQUIRE(bursar_capture_enter(memory, none) == BURSAR_INVALID_HANDLE);
    REQUIRE(bursar_graph_memory_release(memory, NULL) == BURSAR_INVALID_ARGUMENT);
    REQUIRE(bursar_capture_end(memory) == BURSAR_OK);
}

int main(void) {
    bursar_driver_options options = {.struct_size = sizeof(options)};
    bursar_stack_reading reading = {.struct_size = sizeof(reading)};
    bursar_driver driver;
    bursar_device device;
    bursar_stack stack, memory;
    bursar_stream main_stream, side_stream, no_stream = {0};
    bursar_block scratch, outputs[GRAPHS], other;
    CUgraphExec graphs[GRAPHS];
    CUcontext context;
    CUstream raw, side;
    void *event;
    uint64_t held, first = 0, released;
    unsigned char bytes[16] = {0};
    int nth, round;

    REQUIRE(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
    REQUIRE(cuStreamCreate(&raw, 1) == 0 && cuStreamCreate(&side, 1) == 0 && cuEventCreate(&event, 2) == 0);
    options.choice = BURSAR_DRIVER_CUDA;
    REQUIRE(bursar_driver_open(&options, &driver) == BURSAR_OK);
    REQUIRE(bursar_device_open(driver, 0, NULL, &device) == BURSAR_OK);
    REQUIRE(bursar_stack_open(device, NULL, &stack) == BURSAR_OK);
    REQUIRE(bursar_stream_adopt(device, raw, &main_stream) == BURSAR_OK);
    REQUIRE(bursar_stream_adopt(device, side, &side_stream) == BURSAR_OK);
    REQUIRE(bursar_graph_memory_open(stack, &memory) == BURSAR_OK);
    refused(stack, memory, main_stream, side_stream);

    for (nth = 0; nth < GRAPHS; nth++) {
        /* The streams are known at once, or enter as they come. */
        REQUIRE(bursar_capture_begin(memory, nth % 2 ? no_stream : main_stream) == BURSAR_OK);
        REQUIRE(bursar_capture_enter(memory, main_stream) == BURSAR_OK);
        REQUIRE(cuStreamBeginCapture_v2(raw, RELAXED) == 0);
        REQUIRE(bursar_allocate(memory, BYTES, 0, main_stream, BURSAR_UNTAGGED, &scratch) == BURSAR_OK);
        REQUIRE(cuMemsetD8Async(scratch.address, (unsigned char)(nth + 1), BYTES, raw) == 0);
        /* The side stream copies, and joins. */
        REQUIRE(cuEventRecord(event, raw) == 0 && cuStreamWaitEvent(side, event, 0) == 0);
        REQUIRE(bursar_capture_order(memory, main_stream, side_stream) == BURSAR_OK);
        REQUIRE(bursar_allocate(memory, BYTES, 0, side_stream, BURSAR_UNTAGGED, &outputs[nth]) == BURSAR_OK);
        REQUIRE(cuMemcpyDtoDAsync_v2(outputs[nth].address, scratch.address, BYTES, side) == 0);
        REQUIRE(cuEventRecord(event, side) == 0 && cuStreamWaitEvent(raw, event, 0) == 0);
        REQUIRE(bursar_capture_order(memory, side_stream, main_stream) == BURSAR_OK);
        REQUIRE(bursar_free(scratch, main_stream) == BURSAR_OK);
        /* The pool goes on as ever, but not on a stream that is captured. */
        REQUIRE(bursar_allocate(stack, BYTES, 0, main_stream, BURSAR_UNTAGGED, &other) == BURSAR_INVALID_STREAM);
        graphs[nth] = instantiated(raw);
        REQUIRE(bursar_capture_end(memory) == BURSAR_OK);
        first = nth == 0 ? scratch.address : first;
        REQUIRE(scratch.address == first);
    }
    REQUIRE(bursar_stack_read(memory, &reading) == BURSAR_OK && reading.outstanding == GRAPHS * BYTES);
    held = reading.held;
    REQUIRE(held >= (GRAPHS + 1) * BYTES && held <= (GRAPHS + 2) * BYTES && reading.cached == held - GRAPHS * BYTES);

    for (round = 0; round < 100; round++) {
        nth = round % GRAPHS;
        REQUIRE(bursar_allocate(stack, BYTES, 0, side_stream, BURSAR_UNTAGGED, &other) == BURSAR_OK);
        REQUIRE(cuMemsetD8Async(other.address, 99, BYTES, side) == 0 && bursar_free(other, side_stream) == BURSAR_OK);
        REQUIRE(cuGraphLaunch(graphs[nth], raw) == 0 && bursar_graph_launched(memory, main_stream) == BURSAR_OK);
        REQUIRE(cuStreamSynchronize(raw) == 0);
        REQUIRE(cuMemcpyDtoH_v2(bytes, outputs[nth].address, sizeof(bytes)) == 0);
        REQUIRE(bytes[0] == nth + 1 && bytes[15] == nth + 1);
    }

    /* The graphs end: what is in no block goes back, and the rest with the blocks. */
    for (nth = 0; nth < GRAPHS; nth++) {
        REQUIRE(cuGraphExecDestroy(graphs[nth]) == 0);
    }
    REQUIRE(bursar_stack_close(memory) == BURSAR_STILL_HELD);
    REQUIRE(bursar_graph_memory_release(memory, &released) == BURSAR_OK && released >= BYTES);
    REQUIRE(bursar_capture_begin(memory, main_stream) == BURSAR_INVALID_ARGUMENT);
    for (nth = 0; nth < GRAPHS; nth++) {
        REQUIRE(bursar_free(outputs[nth], nth % 2 ? main_stream : side_stream) == BURSAR_OK);
    }
    REQUIRE(bursar_stack_read(memory, &reading) == BURSAR_OK && reading.held == 0 && reading.outstanding == 0);
    REQUIRE(bursar_stack_close(stack) == BURSAR_OK && bursar_stack_close(memory) == BURSAR_OK);
    REQUIRE(bursar_stream_close(main_stream) == BURSAR_OK && cuStreamDestroy_v2(raw) == 0);
    REQUIRE(bursar_stream_close(side_stream) == BURSAR_OK && cuStreamDestroy_v2(side) == 0);
    REQUIRE(bursar_device_close(device) == BURSAR_OK && bursar_driver_close(driver) == BURSAR_OK);
    printf("all replayed\n");
    return 0;
}

// Every allocating entry point: charged exactly, and refused at the byte.
#include "driver.h"

// The share is taken but for `rest` bytes, which is a multiple of what linear memory is rounded to.
static Pointer leave(size_t rest) {
    Pointer taken = 0;
    if (left() > rest)
        OK(cuMemAlloc(&taken, left() - rest));
    CHECK(left() == rest);
    return taken;
}

static void give_back(Pointer taken) {
    if (taken)
        OK(cuMemFree(taken));
}

static void linear(void) {
    Pointer taken = leave(4096), exact, more = 77;
    CHECK(cuMemAlloc(&more, 4097) == OUT_OF_MEMORY && more == 77);
    OK(cuMemAlloc(&exact, 4096));
    CHECK(left() == 0 && charged() == given());
    CHECK(cuMemAlloc(&more, 1) == OUT_OF_MEMORY);
    OK(cuMemFree(exact));
    CHECK(left() == 4096 && charged() == given());
    CHECK(cuMemFree(exact) != SUCCESS && left() == 4096);
    OK(cuMemFree(0));
    CHECK(cuMemAlloc(&more, 0) == INVALID_VALUE && cuMemAlloc(NULL, 256) == INVALID_VALUE && left() == 4096);
    give_back(taken);
}

static void pages(void) {
    struct AllocationProperties kind = on_device();
    Pointer taken = leave(3 * PAGE - 256), handle, other, retained, place;
    CHECK(cuMemCreate(&other, 3 * PAGE, &kind, 0) == OUT_OF_MEMORY);
    OK(cuMemCreate(&handle, 2 * PAGE, &kind, 0));
    CHECK(left() == PAGE - 256 && charged() == given());
    CHECK(cuMemCreate(&other, PAGE + 1, &kind, 0) != SUCCESS && left() == PAGE - 256);

    OK(cuMemAddressReserve(&place, 8 * PAGE, 0, 0, 0));
    OK(cuMemMap(place, 2 * PAGE, 0, handle, 0));
    OK(cuMemRetainAllocationHandle(&retained, (void *)(uintptr_t)place));
    OK(cuMemRelease(handle));
    OK(cuMemRelease(retained));
    CHECK(left() == PAGE - 256 && charged() == given());
    OK(cuMemUnmap(place, 2 * PAGE));
    CHECK(left() == 3 * PAGE - 256 && charged() == given());

    OK(cuMemCreate(&handle, 2 * PAGE, &kind, 0));
    OK(cuMemMap(place, 2 * PAGE, 0, handle, 0));
    OK(cuMemMap(place + 4 * PAGE, 2 * PAGE, 0, handle, 0));
    OK(cuMemUnmap(place, 2 * PAGE));
    OK(cuMemRelease(handle));
    CHECK(left() == PAGE - 256 && charged() == given());
    CHECK(cuMemRelease(handle) != SUCCESS || cuMemUnmap(place, 2 * PAGE) != SUCCESS);
    CHECK(left() == PAGE - 256 && charged() == given());
    OK(cuMemUnmap(place + 4 * PAGE, 2 * PAGE));
    CHECK(left() == 3 * PAGE - 256 && charged() == given());
    OK(cuMemAddressFree(place, 8 * PAGE));
    give_back(taken);
}

static void rows(void) {
    Pointer taken = leave(512 * 10), exact, more;
    size_t pitch = 0;
    CHECK(cuMemAllocPitch(&more, &pitch, 513, 10, 4) == OUT_OF_MEMORY);
    CHECK(cuMemAllocPitch(&more, &pitch, 500, 11, 4) == OUT_OF_MEMORY);
    OK(cuMemAllocPitch(&exact, &pitch, 500, 10, 4));
    CHECK(pitch == 512 && left() == 0 && charged() == given());
    OK(cuMemFree(exact));
    CHECK(left() == 512 * 10 && charged() == given());
    give_back(taken);
}

static void managed(void) {
    enum { ATTACH_GLOBAL = 1 };
    Pointer taken = leave(4096), exact, more;
    CHECK(cuMemAllocManaged(&more, 4097, ATTACH_GLOBAL) == OUT_OF_MEMORY);
    OK(cuMemAllocManaged(&exact, 4000, ATTACH_GLOBAL));
    CHECK(left() == 0 && charged() == given());
    OK(cuMemFree(exact));
    CHECK(left() == 4096 && charged() == given());
    give_back(taken);
}

static void arrays(void) {
    enum { FLOAT = 0x20 };
    struct Plane plane = { 32, 32, FLOAT, 1 };
    struct Solid solid = { 16, 8, 8, FLOAT, 1, 0 };
    Pointer taken = leave(4096);
    Handle array, more;
    OK(cuArrayCreate(&array, &plane));
    CHECK(left() == 0 && charged() == given());
    CHECK(cuArrayCreate(&more, &plane) == OUT_OF_MEMORY);
    OK(cuArrayDestroy(array));
    CHECK(left() == 4096 && charged() == given());
    plane.width = 33;
    CHECK(cuArrayCreate(&more, &plane) == OUT_OF_MEMORY);
    OK(cuArray3DCreate(&array, &solid));
    CHECK(left() == 0 && charged() == given());
    CHECK(cuArray3DCreate(&more, &solid) == OUT_OF_MEMORY);
    OK(cuArrayDestroy(array));
    CHECK(left() == 4096 && charged() == given());
    CHECK(cuArrayDestroy(array) != SUCCESS && left() == 4096);
    // 512 + 64 + 8 + 1 elements.
    solid = (struct Solid){ 8, 8, 8, FLOAT, 1, 0 };
    OK(cuMipmappedArrayCreate(&array, &solid, 99));
    CHECK(left() == 4096 - 2560 && charged() == given());
    CHECK(cuMipmappedArrayCreate(&more, &solid, 4) == OUT_OF_MEMORY);
    OK(cuMipmappedArrayDestroy(array));
    CHECK(left() == 4096 && charged() == given());
    give_back(taken);
}

// Pools take the device's memory in pieces of 32 MiB, and keep them until somebody synchronises.
enum { PIECE = 32 << 20 };

static void ordered(size_t whole) {
    Pointer taken = leave(PIECE), first, second, more;
    OK(cuMemAllocAsync(&first, 1000, NULL));
    CHECK(left() == 0 && charged() == given());
    OK(cuMemAllocAsync(&second, PIECE - 1024, NULL));
    CHECK(left() == 0 && charged() == given());
    CHECK(cuMemAllocAsync(&more, 1, NULL) == OUT_OF_MEMORY);
    OK(cuMemFreeAsync(second, NULL));
    CHECK(left() == 0 && charged() == given());
    OK(cuStreamSynchronize(NULL));
    CHECK(left() == 0 && charged() == given());
    OK(cuMemFreeAsync(first, NULL));
    CHECK(charged() == given());
    OK(cuStreamSynchronize(NULL));
    CHECK(left() == PIECE && charged() == given());
    give_back(taken);
    taken = leave(PIECE - 256);
    CHECK(cuMemAllocAsync(&more, 1, NULL) == OUT_OF_MEMORY && charged() == given());
    give_back(taken);
    // What a pool keeps is given back before anybody else is refused.
    Handle pool;
    unsigned long long keep = ~0ull;
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemPoolSetAttribute(pool, 4, &keep));
    OK(cuMemAllocAsync(&first, 1000, NULL));
    OK(cuMemFreeAsync(first, NULL));
    OK(cuStreamSynchronize(NULL));
    CHECK(left() == whole - PIECE && charged() == given());
    OK(cuMemAlloc(&more, whole));
    CHECK(left() == 0 && charged() == given());
    OK(cuMemFree(more));
    OK(cuMemAllocAsync(&first, 1000, NULL));
    OK(cuMemFree(first));
    OK(cuMemPoolTrimTo(pool, 0));
    CHECK(left() == whole && charged() == given());
    keep = 0;
    OK(cuMemPoolSetAttribute(pool, 4, &keep));
}

static void pools(void) {
    struct PoolProperties kind = { .type = 1, .location = { 1, 0 } };
    Pointer taken = leave(PIECE), first, more;
    Handle pool;
    OK(cuMemPoolCreate(&pool, &kind));
    OK(cuMemAllocFromPoolAsync(&first, 1000, pool, NULL));
    CHECK(left() == 0 && charged() == given());
    CHECK(cuMemAllocFromPoolAsync(&more, PIECE, pool, NULL) == OUT_OF_MEMORY);
    CHECK(cuMemAllocAsync(&more, 1, NULL) == OUT_OF_MEMORY);
    OK(cuMemPoolDestroy(pool));
    CHECK(left() == 0 && charged() == given());
    OK(cuMemFreeAsync(first, NULL));
    OK(cuStreamSynchronize(NULL));
    CHECK(left() == PIECE && charged() == given());
    OK(cuMemPoolCreate(&pool, &kind));
    OK(cuMemAllocFromPoolAsync(&first, 1000, pool, NULL));
    OK(cuMemFreeAsync(first, NULL));
    OK(cuMemPoolDestroy(pool));
    OK(cuCtxSynchronize());
    CHECK(left() == PIECE && charged() == given());
    give_back(taken);
    // A call that failed leaves nothing charged, whatever pool it named.
    size_t before = left();
    for (int round = 0; round < 4; round++) {
        CHECK(cuMemAllocFromPoolAsync(&more, 1000, NULL, NULL) == INVALID_VALUE && left() == before);
        CHECK(cuMemAllocFromPoolAsync(&more, 1000, pool, NULL) == INVALID_VALUE && left() == before);
        CHECK(cuMemAllocFromPoolAsync(&more, 1000, (Handle)(uintptr_t)(0x1000 + round), NULL) == INVALID_VALUE);
        CHECK(left() == before && charged() == given());
    }
    // Of a pool that is destroyed, what is still in use stays charged, and no more.
    Pointer second;
    size_t whole = left();
    OK(cuMemPoolCreate(&pool, &kind));
    OK(cuMemAllocFromPoolAsync(&first, 1000, pool, NULL));
    OK(cuMemAllocFromPoolAsync(&second, 40 << 20, pool, NULL));
    CHECK(left() == whole - 2 * PIECE && charged() == given());
    OK(cuMemFreeAsync(second, NULL));
    OK(cuMemPoolDestroy(pool));
    OK(cuStreamSynchronize(NULL));
    CHECK(left() == whole - PIECE && charged() == given());
    OK(cuMemFreeAsync(first, NULL));
    OK(cuStreamSynchronize(NULL));
    CHECK(left() == whole && charged() == given());
    // So it is where the pool was to keep what is freed, and however it is freed.
    for (int round = 0; round < 4; round++) {
        unsigned long long keep = round & 1 ? ~0ull : 0;
        OK(cuMemPoolCreate(&pool, &kind));
        OK(cuMemPoolSetAttribute(pool, 4, &keep));
        OK(cuMemAllocFromPoolAsync(&second, 40 << 20, pool, NULL));
        OK(cuMemAllocFromPoolAsync(&first, 1000, pool, NULL));
        OK(cuMemPoolDestroy(pool));
        CHECK(left() == whole - 2 * PIECE && charged() == given());
        if (round & 2) {
            OK(cuMemFree(second));
        } else {
            OK(cuMemFreeAsync(second, NULL));
            OK(cuStreamSynchronize(NULL));
        }
        CHECK(charged() == given());
        OK(cuStreamSynchronize(NULL));
        CHECK(left() == whole - PIECE && charged() == given());
        OK(cuMemFree(first));
        CHECK(left() == whole && charged() == given());
    }
}

// What was allocated in a context ends with it.
static void contexts(size_t whole) {
    Handle other, array;
    Pointer linear, handle;
    struct AllocationProperties kind = on_device();
    struct Plane plane = { 32, 32, 0x20, 1 };
    OK(cuCtxCreate(&other, 0, 0));
    OK(cuMemAlloc(&linear, 1 << 20));
    OK(cuArrayCreate(&array, &plane));
    OK(cuMemCreate(&handle, PAGE, &kind, 0));
    CHECK(charged() == given());
    OK(cuCtxDestroy(other));
    OK(cuCtxSetCurrent(context));
    CHECK(charged() == given());
    OK(cuMemRelease(handle));
    CHECK(left() == whole && charged() == given());
    OK(cuMemAlloc(&linear, 1 << 20));
    OK(cuMemAllocAsync(&linear, 1 << 20, NULL));
    OK(cuDevicePrimaryCtxReset(0));
    for (int round = 0; round < 2; round++) {
        OK(cuDevicePrimaryCtxRetain(&context, 0));
        OK(cuCtxSetCurrent(context));
        CHECK(left() == whole && charged() == given());
        OK(cuMemAlloc(&linear, 1 << 20));
        OK(cuDevicePrimaryCtxRetain(&other, 0));
        OK(cuDevicePrimaryCtxRelease(0));
        CHECK(left() == whole - (1 << 20) && charged() == given());
        OK(cuDevicePrimaryCtxRelease(0));
    }
}

int main(int count, char **words) {
    CHECK(count == 2);
    start(words[1]);
    size_t total, before = left();
    OK(cuDeviceTotalMem(&total, 0));
    CHECK(charged() == given() && before == total);
    linear();
    CHECK(left() == before && charged() == given());
    pages();
    CHECK(left() == before && charged() == given());
    rows();
    CHECK(left() == before && charged() == given());
    managed();
    CHECK(left() == before && charged() == given());
    arrays();
    CHECK(left() == before && charged() == given());
    ordered(before);
    CHECK(left() == before && charged() == given());
    pools();
    CHECK(left() == before && charged() == given());
    contexts(before);
    puts("done");
}

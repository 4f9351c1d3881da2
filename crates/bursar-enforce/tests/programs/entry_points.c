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
    puts("done");
}

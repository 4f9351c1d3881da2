// A program that ends at one of the steps of its calls, whose number it is told; without one it counts them.
#include "driver.h"

static long passed, ends_at = -1;

static void on_step(const char *step) {
    (void)step;
    if (passed++ == ends_at)
        abort();
}

int main(int count, char **words) {
    if (count == 2)
        ends_at = atol(words[1]);
    find("local");
    void (*watch)(void (*)(const char *)) = dlsym(RTLD_DEFAULT, "bursar_enforce_on_step");
    CHECK(watch);
    watch(on_step);
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    struct AllocationProperties kind = on_device();
    struct Plane plane = { 32, 32, 0x20, 1 };
    Pointer linear, pitched, managed, ordered, handle, place;
    size_t pitch;
    Handle array;
    OK(cuMemAlloc(&linear, 1 << 20));
    OK(cuMemAllocPitch(&pitched, &pitch, 500, 10, 4));
    OK(cuMemAllocManaged(&managed, 1000, 1));
    OK(cuMemAllocAsync(&ordered, 1000, NULL));
    OK(cuArrayCreate(&array, &plane));
    OK(cuMemCreate(&handle, PAGE, &kind, 0));
    OK(cuMemAddressReserve(&place, PAGE, 0, 0, 0));
    OK(cuMemMap(place, PAGE, 0, handle, 0));
    OK(cuMemRelease(handle));
    OK(cuMemUnmap(place, PAGE));
    OK(cuArrayDestroy(array));
    OK(cuMemFreeAsync(ordered, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuMemFree(managed));
    OK(cuMemFree(pitched));
    OK(cuMemFree(linear));
    CHECK(charged() == 0 && given() == 0);
    printf("%ld\n", passed);
}

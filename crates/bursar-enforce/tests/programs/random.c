// A program drawn from a seed: after each step what is charged is what the driver has given out.
#include "driver.h"

enum { HELD = 12, KINDS = 12 };
enum Kind { NONE, LINEAR, MANAGED, PITCHED, ORDERED, POOLED, ARRAY, SOLID, MIPMAP, PHYSICAL, MAPPED };

static struct Held { enum Kind kind; Pointer pointer, place; Handle handle; size_t bytes; } held[HELD];
static unsigned long long state;
static Handle pool, streams[2];
static struct AllocationProperties kind = { .type = 1, .location = { 1, 0 } };

static unsigned draw(unsigned below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 32) % below;
}

static size_t size(void) {
    return draw(2) ? 1 + draw(8 << 20) : 1 + draw(5000);
}

// Memory that is refused is refused because it does not fit: `cost` is what it would take.
static enum Kind outcome(Result result, enum Kind kind, size_t cost) {
    CHECK(result == SUCCESS || result == OUT_OF_MEMORY);
    if (result == OUT_OF_MEMORY)
        CHECK(cost > left());
    return result == SUCCESS ? kind : NONE;
}

static size_t rounded(size_t bytes) {
    return (bytes + 255) / 256 * 256;
}

static void take(struct Held *at) {
    size_t bytes = size(), pitch, width = 1 + draw(3000), height = 1 + draw(500);
    struct Plane plane = { width, height, 0x20, 1 };
    struct Solid solid = { 1 + draw(100), 1 + draw(60), 1 + draw(40), 0x20, 2, 0 };
    Handle stream = streams[draw(2)];
    switch (draw(9)) {
    case 0: at->kind = outcome(cuMemAlloc(&at->pointer, bytes), LINEAR, rounded(bytes)); break;
    case 1: at->kind = outcome(cuMemAllocManaged(&at->pointer, bytes, 1), MANAGED, rounded(bytes)); break;
    case 2: {
        size_t row = (width + 511) / 512 * 512;
        at->kind = outcome(cuMemAllocPitch(&at->pointer, &pitch, width, height, 4), PITCHED, row * height);
        break;
    }
    case 3: at->kind = outcome(cuMemAllocAsync(&at->pointer, bytes, stream), ORDERED, 32 << 20); break;
    case 4: at->kind = outcome(cuMemAllocFromPoolAsync(&at->pointer, bytes, pool, stream), POOLED, 32 << 20); break;
    case 5: at->kind = outcome(cuArrayCreate(&at->handle, &plane), ARRAY, rounded(width * height * 4)); break;
    case 6:
        at->kind = outcome(cuArray3DCreate(&at->handle, &solid), SOLID, rounded(solid.width * solid.height * solid.depth * 8));
        break;
    case 7:
        at->kind = outcome(cuMipmappedArrayCreate(&at->handle, &solid, 1 + draw(9)), MIPMAP, 2 * rounded(solid.width * solid.height * solid.depth * 8));
        break;
    default:
        at->bytes = (1 + draw(3)) * PAGE;
        at->kind = outcome(cuMemCreate(&at->pointer, at->bytes, &kind, 0), PHYSICAL, at->bytes);
    }
}

static void give(struct Held *at) {
    Pointer retained;
    switch (at->kind) {
    case NONE: return;
    case LINEAR: case MANAGED: case PITCHED: OK(cuMemFree(at->pointer)); break;
    case ORDERED: case POOLED:
        if (draw(4))
            OK(cuMemFreeAsync(at->pointer, streams[draw(2)]));
        else
            OK(cuMemFree(at->pointer));
        break;
    case ARRAY: case SOLID: OK(cuArrayDestroy(at->handle)); break;
    case MIPMAP: OK(cuMipmappedArrayDestroy(at->handle)); break;
    case PHYSICAL:
        if (draw(2)) {
            OK(cuMemRelease(at->pointer));
            break;
        }
        // Mapped, and released while it is mapped.
        OK(cuMemAddressReserve(&at->place, at->bytes, 0, 0, 0));
        OK(cuMemMap(at->place, at->bytes, 0, at->pointer, 0));
        if (draw(2)) {
            OK(cuMemRetainAllocationHandle(&retained, (void *)(uintptr_t)at->place));
            OK(cuMemRelease(retained));
        }
        OK(cuMemRelease(at->pointer));
        at->kind = MAPPED;
        return;
    case MAPPED:
        OK(cuMemUnmap(at->place, at->bytes));
        OK(cuMemAddressFree(at->place, at->bytes));
        break;
    }
    at->kind = NONE;
}

static void step(void) {
    struct Held *at = &held[draw(HELD)];
    switch (draw(8)) {
    case 0: OK(cuStreamSynchronize(streams[draw(2)])); break;
    case 1: OK(cuCtxSynchronize()); break;
    case 2: OK(cuMemPoolTrimTo(pool, draw(2) ? 0 : draw(64 << 20))); break;
    default:
        if (at->kind == NONE)
            take(at);
        else
            give(at);
    }
}

int main(int count, char **words) {
    CHECK(count == 4);
    start(words[1]);
    state = strtoull(words[2], NULL, 10) * 0x9e3779b97f4a7c15ull + 1;
    struct PoolProperties properties = { .type = 1, .location = { 1, 0 } };
    OK(cuMemPoolCreate(&pool, &properties));
    OK(cuStreamCreate(&streams[1], 1));
    int steps = atoi(words[3]);
    size_t whole = left();
    for (int number = 0; number < steps; number++) {
        step();
        size_t is_charged = charged(), is_given = given();
        if (is_charged != is_given) {
            fprintf(stderr, "seed %s, step %d: %zu are charged and %zu given out\n", words[2], number, is_charged, is_given);
            return 1;
        }
    }
    for (int at = 0; at < HELD; at++)
        while (held[at].kind != NONE)
            give(&held[at]);
    OK(cuCtxSynchronize());
    OK(cuMemPoolDestroy(pool));
    OK(cuMemPoolTrimTo((cuDeviceGetDefaultMemPool(&pool, 0), pool), 0));
    CHECK(left() == whole && given() == 0);
    puts("done");
}

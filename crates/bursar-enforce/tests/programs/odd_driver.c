// A driver unlike the simulated one: it packs small allocations into pages as that of hardware does, has functions of the first
// version, one of a version that is still to come, graphs that allocate, lacks others, and calls itself by its exported symbols.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int Result;
typedef unsigned long long Pointer;
enum { PAGE = 2 << 20, UNIT = 512, PAGES = 64, OUT_OF_MEMORY = 2, NOT_FOUND = 500 };

// Blocks in each page: a unit is taken or not; a long block takes whole pages.
static unsigned char units[PAGES][PAGE / UNIT];
static struct { size_t first, count; } blocks[1 << 16];
static const Pointer base = 0x700000000000;
static unsigned long long graph_reserved, graph_used, pool_reserved, pool_used;
static void unsafe_call(void);

static size_t pages_used(void) {
    size_t used = 0;
    for (int page = 0; page < PAGES; page++)
        used += memchr(units[page], 1, sizeof units[page]) != NULL;
    return used;
}

Result cuInit(unsigned flags) { return 0; }
Result cuDeviceGetCount(int *count) { return *count = 1, 0; }
Result cuDeviceGet(int *device, int ordinal) { return *device = ordinal, ordinal ? 101 : 0; }
Result cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    const char *text = getenv("ODD_UUID");
    for (int at = 0; at < 16; at++) {
        char digits[3] = { text[2 * at], text[2 * at + 1], 0 };
        uuid[at] = strtoul(digits, NULL, 16);
    }
    return 0;
}
Result cuDeviceTotalMem_v2(size_t *total, int device) { return *total = (size_t)PAGES * PAGE, 0; }
Result cuDevicePrimaryCtxRetain(void **context, int device) { return *context = units, 0; }
Result cuCtxSetCurrent(void *context) { return 0; }
Result cuCtxGetCurrent(void **context) { return *context = units, 0; }
Result cuMemGetInfo_v2(size_t *free, size_t *total) {
    *total = (size_t)PAGES * PAGE;
    *free = *total - pages_used() * PAGE - graph_reserved - pool_reserved;
    return unsafe_call(), 0;
}

Result cuMemAlloc_v2(Pointer *pointer, size_t bytes) {
    size_t count = (bytes + UNIT - 1) / UNIT, run = 0, all = PAGES * (PAGE / UNIT);
    unsigned char *flat = &units[0][0];
    if (bytes == 0)
        return 1;
    size_t step = bytes >= PAGE / 2 ? PAGE / UNIT : 1;
    if (step > 1)
        count = (count + step - 1) / step * step;
    for (size_t at = 0; at < all; at++) {
        run = flat[at] || (run == 0 && at % step) ? 0 : run + 1;
        // A small one lies in one page.
        if (step == 1 && run && (at + 1 - run) / (PAGE / UNIT) != at / (PAGE / UNIT))
            run = 1;
        if (run == count) {
            size_t first = at + 1 - count;
            for (int slot = 0; slot < 1 << 16; slot++)
                if (!blocks[slot].count) {
                    blocks[slot].first = first;
                    blocks[slot].count = count;
                    memset(flat + first, 1, count);
                    return *pointer = base + first * UNIT, 0;
                }
        }
    }
    return OUT_OF_MEMORY;
}

Result cuMemFree_v2(Pointer pointer) {
    for (int slot = 0; slot < 1 << 16; slot++)
        if (blocks[slot].count && base + blocks[slot].first * UNIT == pointer) {
            memset(&units[0][0] + blocks[slot].first, 0, blocks[slot].count);
            return blocks[slot].count = 0;
        }
    return pointer ? 1 : 0;
}

// Through the symbol, as a library that is bound like everybody.
Result cuMemAllocPitch_v2(Pointer *pointer, size_t *pitch, size_t width, size_t height, unsigned element) {
    *pitch = (width + 511) / 512 * 512;
    return cuMemAlloc_v2(pointer, *pitch * height);
}

// Addresses of the first version have 32 bits.
static Pointer of_short[256];
static unsigned shorts;
Result cuMemAlloc(unsigned *pointer, unsigned bytes) {
    Result (*allocate)(Pointer *, size_t) = cuMemAlloc_v2;
    Result result = allocate(&of_short[shorts], bytes);
    if (result == 0)
        *pointer = PAGE * ++shorts;
    return result;
}
Result cuMemFree(unsigned pointer) { return cuMemFree_v2(of_short[pointer / PAGE - 1]); }

// A version that is still to come has another signature.
Result odd_newer(size_t bytes, int kind, Pointer *pointer) { return cuMemAlloc_v2(pointer, bytes); }
Result cuSomethingElse(void) { return 4711; }

// Graphs: a handle is the number of bytes that one allocates, and one that is instantiated takes them when it is launched.
Result cuGraphGetNodes(void *graph, void **nodes, size_t *count) {
    if (nodes)
        nodes[0] = graph;
    return *count = 1, 0;
}
Result cuGraphNodeGetType(void *node, int *type) { return *type = node ? 10 : 5, 0; }
Result cuGraphMemAllocNodeGetParams(void *node, void *parameters) {
    return memcpy((char *)parameters + 104, &node, 8), 0;
}
Result cuGraphInstantiateWithFlags(void **made, void *graph, unsigned long long flags) { return *made = graph, 0; }
Result cuGraphLaunch(void *made, void *stream) {
    graph_used = ((uintptr_t)made + PAGE - 1) / PAGE * PAGE;
    graph_reserved = graph_reserved > graph_used ? graph_reserved : graph_used;
    return 0;
}
Result cuGraphExecDestroy(void *made) { return graph_used = 0; }
Result cuDeviceGraphMemTrim(int device) { return graph_reserved = graph_used, 0; }
Result cuDeviceGetGraphMemAttribute(int device, int attribute, unsigned long long *value) {
    return *value = attribute == 2 ? graph_reserved : graph_used, 0;
}

// A pool, whose questions spoil a capture unless the thread allows every call.
static int is_captured, is_spoiled, mode;
static const Pointer pool_base = 0x600000000000;
static void unsafe_call(void) { is_spoiled |= is_captured && mode != 2; }
Result odd_capture(int begin) {
    int spoiled = is_spoiled;
    return is_captured = begin, is_spoiled = 0, spoiled;
}
Result cuThreadExchangeStreamCaptureMode(int *other) {
    int before = mode;
    return mode = *other, *other = before, 0;
}
// The stream with the handle 1 is the one that is captured.
static int captures(void *stream) { return is_captured && stream == (void *)1; }
Result cuStreamIsCapturing(void *stream, int *status) { return *status = captures(stream), 0; }
Result cuDeviceGetMemPool(void **pool, int device) { return unsafe_call(), *pool = &pool_reserved, 0; }
Result cuMemPoolGetAttribute(void *pool, int attribute, void *value) {
    unsafe_call();
    return *(unsigned long long *)value = attribute == 5 ? pool_reserved : pool_used, 0;
}
Result cuMemPoolTrimTo(void *pool, size_t keep) { return unsafe_call(), pool_reserved = pool_used ? pool_reserved : 0, 0; }
Result cuMemAllocAsync(Pointer *pointer, size_t bytes, void *stream) {
    *pointer = pool_base;
    if (captures(stream))
        return 0;
    pool_used += bytes;
    while (pool_reserved < pool_used)
        pool_reserved += 32 << 20;
    return 0;
}
Result cuMemFreeAsync(Pointer pointer, void *stream) {
    if (!captures(stream))
        pool_used = 0;
    return 0;
}
Result cuStreamSynchronize(void *stream) { return unsafe_call(), pool_reserved = pool_used ? pool_reserved : 0, 0; }

Result cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status) {
    *found = NULL;
    if (!strcmp(name, "cuMemAlloc"))
        *found = version >= 14000 ? (void *)odd_newer : version >= 3020 ? (void *)cuMemAlloc_v2 : (void *)cuMemAlloc;
    if (!strcmp(name, "cuMemFree"))
        *found = version >= 3020 ? (void *)cuMemFree_v2 : (void *)cuMemFree;
    if (!strcmp(name, "cuSomethingElse"))
        *found = cuSomethingElse;
    if (status)
        *status = !*found;
    return *found ? 0 : NOT_FOUND;
}

// The driver as programs of these tests meet it: every function by a pointer, found in the way that the program is told.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int Result;
typedef int Device;
typedef unsigned long long Pointer;
typedef void *Handle;

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, PAGE = 2 << 20 };

struct Location { int type, id; };
struct AllocationProperties { int type, handles; struct Location location; void *meta; unsigned char flags[16]; };
struct PoolProperties { int type, handles; struct Location location; void *meta; size_t most; unsigned char reserved[56]; };
struct Plane { size_t width, height; int format; unsigned channels; };
struct Solid { size_t width, height, depth; int format; unsigned channels, flags; };
struct Access { struct Location location; int flags; };

// Functions with the symbol, the name for cuGetProcAddress, and the version that it came with.
#define FUNCTIONS(F) \
    F(cuInit, "cuInit", "cuInit", 2000, (unsigned)) \
    F(cuDeviceGet, "cuDeviceGet", "cuDeviceGet", 2000, (Device *, int)) \
    F(cuDeviceTotalMem, "cuDeviceTotalMem_v2", "cuDeviceTotalMem", 3020, (size_t *, Device)) \
    F(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", 7000, (Handle *, Device)) \
    F(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease", 11000, (Device)) \
    F(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxReset", 11000, (Device)) \
    F(cuCtxCreate, "cuCtxCreate_v2", "cuCtxCreate", 3020, (Handle *, unsigned, Device)) \
    F(cuCtxDestroy, "cuCtxDestroy_v2", "cuCtxDestroy", 4000, (Handle)) \
    F(cuCtxSetCurrent, "cuCtxSetCurrent", "cuCtxSetCurrent", 4000, (Handle)) \
    F(cuCtxSynchronize, "cuCtxSynchronize", "cuCtxSynchronize", 2000, (void)) \
    F(cuMemGetInfo, "cuMemGetInfo_v2", "cuMemGetInfo", 3020, (size_t *, size_t *)) \
    F(cuMemAlloc, "cuMemAlloc_v2", "cuMemAlloc", 3020, (Pointer *, size_t)) \
    F(cuMemFree, "cuMemFree_v2", "cuMemFree", 3020, (Pointer)) \
    F(cuMemCreate, "cuMemCreate", "cuMemCreate", 10020, (Pointer *, size_t, const struct AllocationProperties *, unsigned long long)) \
    F(cuMemRelease, "cuMemRelease", "cuMemRelease", 10020, (Pointer)) \
    F(cuMemAddressReserve, "cuMemAddressReserve", "cuMemAddressReserve", 10020, (Pointer *, size_t, size_t, Pointer, unsigned long long)) \
    F(cuMemAddressFree, "cuMemAddressFree", "cuMemAddressFree", 10020, (Pointer, size_t)) \
    F(cuMemMap, "cuMemMap", "cuMemMap", 10020, (Pointer, size_t, size_t, Pointer, unsigned long long)) \
    F(cuMemUnmap, "cuMemUnmap", "cuMemUnmap", 10020, (Pointer, size_t)) \
    F(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", "cuMemRetainAllocationHandle", 11000, (Pointer *, void *)) \
    F(cuMemAllocAsync, "cuMemAllocAsync", "cuMemAllocAsync", 11020, (Pointer *, size_t, Handle)) \
    F(cuMemFreeAsync, "cuMemFreeAsync", "cuMemFreeAsync", 11020, (Pointer, Handle)) \
    F(cuStreamCreate, "cuStreamCreate", "cuStreamCreate", 2000, (Handle *, unsigned)) \
    F(cuStreamSynchronize, "cuStreamSynchronize", "cuStreamSynchronize", 2000, (Handle)) \
    F(cuMemAllocPitch, "cuMemAllocPitch_v2", "cuMemAllocPitch", 3020, (Pointer *, size_t *, size_t, size_t, unsigned)) \
    F(cuMemAllocManaged, "cuMemAllocManaged", "cuMemAllocManaged", 6000, (Pointer *, size_t, unsigned)) \
    F(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync", 11020, (Pointer *, size_t, Handle, Handle)) \
    F(cuMemPoolCreate, "cuMemPoolCreate", "cuMemPoolCreate", 11020, (Handle *, const struct PoolProperties *)) \
    F(cuMemPoolDestroy, "cuMemPoolDestroy", "cuMemPoolDestroy", 11020, (Handle)) \
    F(cuMemPoolTrimTo, "cuMemPoolTrimTo", "cuMemPoolTrimTo", 11020, (Handle, size_t)) \
    F(cuMemPoolGetAttribute, "cuMemPoolGetAttribute", "cuMemPoolGetAttribute", 11020, (Handle, int, void *)) \
    F(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", "cuMemPoolSetAttribute", 11020, (Handle, int, void *)) \
    F(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", "cuDeviceGetDefaultMemPool", 11020, (Handle *, Device)) \
    F(cuArrayCreate, "cuArrayCreate_v2", "cuArrayCreate", 3020, (Handle *, const struct Plane *)) \
    F(cuArray3DCreate, "cuArray3DCreate_v2", "cuArray3DCreate", 3020, (Handle *, const struct Solid *)) \
    F(cuArrayDestroy, "cuArrayDestroy", "cuArrayDestroy", 2000, (Handle)) \
    F(cuMipmappedArrayCreate, "cuMipmappedArrayCreate", "cuMipmappedArrayCreate", 5000, (Handle *, const struct Solid *, unsigned)) \
    F(cuMipmappedArrayDestroy, "cuMipmappedArrayDestroy", "cuMipmappedArrayDestroy", 5000, (Handle))

#define DECLARE(name, symbol, base, since, parameters) static Result(*name) parameters;
FUNCTIONS(DECLARE)

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            fflush(NULL); \
            _exit(1); \
        } \
    } while (0)
#define OK(call) CHECK((call) == SUCCESS)

static void *library;
static Result (*by_name_2)(const char *, void **, int, uint64_t, void *);
static Result (*by_name_1)(const char *, void **, int, uint64_t);

static void *by_symbol(const char *way, const char *symbol, const char *base, int since, uint64_t flags) {
    void *found = NULL;
    if (!strcmp(way, "global"))
        return dlsym(RTLD_DEFAULT, symbol);
    if (!strncmp(way, "address", 7)) {
        int status = 0;
        if (by_name_2)
            by_name_2(base, &found, since > 11020 ? since : strcmp(base, "cuCtxCreate") ? 12020 : since, flags, &status);
        else
            by_name_1(base, &found, since > 11020 ? since : strcmp(base, "cuCtxCreate") ? 11080 : since, flags);
        return found;
    }
    void *(*lookup)(void *, const char *) = dlsym;
    if (!strcmp(way, "twice"))
        lookup = dlsym(dlopen("libc.so.6", RTLD_LAZY), "dlsym");
    if (!strcmp(way, "versioned")) {
        void *libc = dlopen("libc.so.6", RTLD_LAZY);
        lookup = dlvsym(libc, "dlsym", "GLIBC_2.34");
        lookup = lookup ? lookup : dlvsym(libc, "dlsym", "GLIBC_2.2.5");
        CHECK(lookup != NULL);
    }
    return lookup(library, symbol);
}

// Finds the driver's functions in the way of that name.
static void find(const char *way) {
    const char *path = getenv("DRIVER");
    int flags = RTLD_NOW;
    if (!strcmp(way, "deep"))
        flags |= RTLD_LOCAL | RTLD_DEEPBIND;
    if (!strcmp(way, "global"))
        flags |= RTLD_GLOBAL;
    library = dlopen(!strcmp(way, "path") ? path : "libcuda.so.1", flags);
    CHECK(library != NULL);
    if (!strcmp(way, "address"))
        CHECK((by_name_2 = dlsym(library, "cuGetProcAddress_v2")) != NULL);
    if (!strcmp(way, "address1"))
        CHECK((by_name_1 = dlsym(library, "cuGetProcAddress")) != NULL);
    if (!strcmp(way, "address-address")) {
        int status;
        by_name_2 = dlsym(library, "cuGetProcAddress_v2");
        OK(by_name_2("cuGetProcAddress", (void **)&by_name_2, 12020, 0, &status));
    }
    uint64_t per_thread = !strcmp(way, "address-per-thread") ? 2 : 0;
    if (per_thread)
        CHECK((by_name_2 = dlsym(library, "cuGetProcAddress_v2")) != NULL);
#define FIND(name, symbol, base, since, parameters) CHECK((name = by_symbol(way, symbol, base, since, per_thread)) != NULL);
    FUNCTIONS(FIND)
}

static Handle context;

static void start(const char *way) {
    find(way);
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
}

// What the driver itself says about the device: bytes that it has given out.
static size_t given(void) {
    static Result (*info)(size_t *, size_t *);
    if (!info) {
        void *(*own)(void *, const char *) = dlsym(RTLD_DEFAULT, "bursar_enforce_function");
        CHECK(own != NULL);
        CHECK((info = own(dlsym(library, "cuMemGetInfo_v2"), "cuMemGetInfo_v2")) != NULL);
    }
    size_t free, total;
    OK(info(&free, &total));
    return total - free;
}

// What is left of the share, as the program is told.
static size_t left(void) {
    size_t free, total;
    OK(cuMemGetInfo(&free, &total));
    return free;
}

// What is charged.
static size_t charged(void) {
    size_t free, total;
    OK(cuMemGetInfo(&free, &total));
    return total - free;
}

static struct AllocationProperties on_device(void) {
    return (struct AllocationProperties){ .type = 1, .location = { 1, 0 } };
}

// The driver as programs of these trials meet it: every function by a pointer, found in the way that the program is told.
#pragma once
#include "trial.h"
#include <cuda.h>
#include <dlfcn.h>

// Functions with the symbol, the name for cuGetProcAddress, and their parameters.
#define FUNCTIONS(F) \
    F(init, "cuInit", "cuInit", (unsigned)) \
    F(device_get, "cuDeviceGet", "cuDeviceGet", (CUdevice *, int)) \
    F(total_memory, "cuDeviceTotalMem_v2", "cuDeviceTotalMem", (size_t *, CUdevice)) \
    F(retain_primary, "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice)) \
    F(set_current, "cuCtxSetCurrent", "cuCtxSetCurrent", (CUcontext)) \
    F(synchronize, "cuCtxSynchronize", "cuCtxSynchronize", (void)) \
    F(memory_info, "cuMemGetInfo_v2", "cuMemGetInfo", (size_t *, size_t *)) \
    F(allocate, "cuMemAlloc_v2", "cuMemAlloc", (CUdeviceptr *, size_t)) \
    F(free_linear, "cuMemFree_v2", "cuMemFree", (CUdeviceptr)) \
    F(create, "cuMemCreate", "cuMemCreate", (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long)) \
    F(release, "cuMemRelease", "cuMemRelease", (CUmemGenericAllocationHandle)) \
    F(reserve, "cuMemAddressReserve", "cuMemAddressReserve", (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)) \
    F(map, "cuMemMap", "cuMemMap", (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long)) \
    F(set_access, "cuMemSetAccess", "cuMemSetAccess", (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t)) \
    F(unmap, "cuMemUnmap", "cuMemUnmap", (CUdeviceptr, size_t)) \
    F(stream_create, "cuStreamCreate", "cuStreamCreate", (CUstream *, unsigned)) \
    F(stream_query, "cuStreamQuery", "cuStreamQuery", (CUstream)) \
    F(stream_synchronize, "cuStreamSynchronize", "cuStreamSynchronize", (CUstream)) \
    F(set_bytes_async, "cuMemsetD8Async", "cuMemsetD8Async", (CUdeviceptr, unsigned char, size_t, CUstream)) \
    F(allocate_async, "cuMemAllocAsync", "cuMemAllocAsync", (CUdeviceptr *, size_t, CUstream)) \
    F(free_async, "cuMemFreeAsync", "cuMemFreeAsync", (CUdeviceptr, CUstream)) \
    F(default_pool, "cuDeviceGetDefaultMemPool", "cuDeviceGetDefaultMemPool", (CUmemoryPool *, CUdevice)) \
    F(set_pool, "cuMemPoolSetAttribute", "cuMemPoolSetAttribute", (CUmemoryPool, CUmemPool_attribute, void *)) \
    F(trim_pool, "cuMemPoolTrimTo", "cuMemPoolTrimTo", (CUmemoryPool, size_t))

// The driver's functions, found in one way.
struct Driver {
#define DECLARE(name, symbol, base, parameters) CUresult(*name) parameters;
    FUNCTIONS(DECLARE)
#undef DECLARE
};

static void *library;

#define DO(call) \
    do { \
        CUresult status_ = (call); \
        if (status_ != CUDA_SUCCESS) { \
            check(0, #call, "%d", (int)status_); \
            exit(end()); \
        } \
    } while (0)

static inline void open_library(void) {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!check(library != NULL, "the driver is loaded", "%s", library ? "libcuda.so.1" : dlerror()))
        exit(end());
}

// Finds every function: by `dlsym`, or by `cuGetProcAddress` in version 1 or 2 with the flags 0 to 2, as `address2:0`.
static inline struct Driver find(const char *way) {
    struct Driver driver;
    CUresult (*first)(const char *, void **, int, cuuint64_t) = NULL;
    CUresult (*second)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *) = NULL;
    cuuint64_t flags = strchr(way, ':') ? strtoull(strchr(way, ':') + 1, NULL, 10) : 0;
    open_library();
    memset(&driver, 0, sizeof driver);
    if (!strncmp(way, "address1", 8))
        *(void **)&first = dlsym(library, "cuGetProcAddress");
    if (!strncmp(way, "address2", 8))
        *(void **)&second = dlsym(library, "cuGetProcAddress_v2");
    if (!strncmp(way, "address", 7) && !first && !second) {
        skip("cuGetProcAddress", "the driver has no such version");
        exit(0);
    }
    const char *missing = NULL;
#define FIND(name, symbol, base, parameters) \
    { \
        void *found = NULL; \
        CUdriverProcAddressQueryResult outcome; \
        if (first) \
            first(base, &found, 12000, flags); \
        else if (second) \
            second(base, &found, 12000, flags, &outcome); \
        else \
            found = dlsym(library, symbol); \
        memcpy(&driver.name, &found, sizeof found); \
        missing = found ? missing : symbol; \
    }
    FUNCTIONS(FIND)
#undef FIND
    if (!check(!missing, "every function is found", "%s", missing ? missing : way))
        exit(end());
    return driver;
}

// Opens the device, and makes its primary context current.
static inline void open_device(const struct Driver *driver) {
    CUdevice device;
    CUcontext context;
    DO(driver->init(0));
    DO(driver->device_get(&device, 0));
    DO(driver->retain_primary(&context, device));
    DO(driver->set_current(context));
}

static inline size_t left_of(const struct Driver *driver) {
    size_t free = 0, total = 0;
    DO(driver->memory_info(&free, &total));
    return free;
}

// Takes all that is left but so many pages, and less than one more. When little is left, what the driver took for itself is charged too: so
// it is taken once for that, and then again.
static inline CUdeviceptr leave(const struct Driver *driver, size_t pages) {
    CUdeviceptr taken = 0;
    usleep(LOOK_US);
    for (int tries = 0; tries < 4; tries++) {
        DO(driver->allocate(&taken, (left_of(driver) / PAGE - pages) * PAGE));
        if (left_of(driver) / PAGE == pages)
            break;
        DO(driver->free_linear(taken));
    }
    check(left_of(driver) / PAGE == pages, "so much is left", "%zu, %zu pages wanted", left_of(driver), pages);
    return taken;
}

static inline CUmemAllocationProp on_device(void) {
    CUmemAllocationProp kind;
    memset(&kind, 0, sizeof kind);
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return kind;
}

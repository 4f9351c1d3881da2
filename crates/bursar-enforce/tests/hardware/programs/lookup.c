// A program of the driver that finds its functions at run time, in the way that it is told: however it does, it is charged and refused.
#include "driver.h"

enum { PIECE = 32 << 20 };

struct Memory {
    unsigned long long total, free, used;
};

struct Process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

// What NVML tells a program is its share and itself.
static void is_told_by_nvml(void) {
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!nvml)
        return skip("NVML", "it is not there");
    int (*init)(void) = (int (*)(void))dlsym(nvml, "nvmlInit_v2");
    int (*by_index)(unsigned, void **) = (int (*)(unsigned, void **))dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
    int (*by_uuid)(const char *, void **) = (int (*)(const char *, void **))dlsym(nvml, "nvmlDeviceGetHandleByUUID");
    int (*memory_of)(void *, struct Memory *) = (int (*)(void *, struct Memory *))dlsym(nvml, "nvmlDeviceGetMemoryInfo");
    int (*processes_of)(void *, unsigned *, struct Process *) =
        (int (*)(void *, unsigned *, struct Process *))dlsym(nvml, "nvmlDeviceGetComputeRunningProcesses_v3");
    if (!init || !by_index || !by_uuid || !memory_of || !processes_of || init())
        return skip("NVML", "it cannot be used");
    void *device = NULL;
    const char *uuid = getenv("CUDA_VISIBLE_DEVICES");
    if ((!uuid || by_uuid(uuid, &device)) && by_index(0, &device))
        return skip("NVML", "it does not know the card");
    struct Memory memory = { 0, 0, 0 };
    int status = memory_of(device, &memory);
    check(status == 0 && memory.total == share_bytes(), "NVML shows the share", "%llu, status %d", memory.total, status);
    struct Process processes[64];
    unsigned count = 64;
    status = processes_of(device, &count, processes);
    check(status == 0 && count == 1 && processes[0].pid == (unsigned)getpid(), "and this process alone", "%u processes, status %d", count, status);
}

int main(int count, char **words) {
    const char *way = count > 1 ? words[1] : "dlsym";
    begin();
    struct Driver found = find(way);
    const struct Driver *driver = &found;
    open_device(driver);
    CUdeviceptr taken = 0, exact = 0, more = 0, place = 0;
    DO(driver->allocate(&taken, PAGE));
    DO(driver->free_linear(taken));
    size_t total = 0, all = left_of(driver);
    DO(driver->total_memory(&total, 0));
    is_share(total);
    check(all <= total, "what is left", "%zu of %zu", all, total);

    taken = leave(driver, 8);
    CUresult status = driver->allocate(&more, 8 * (size_t)PAGE + 1);
    check(status == CUDA_ERROR_OUT_OF_MEMORY, "8 pages and a byte: refused", "%d", (int)status);
    status = driver->allocate(&exact, 8 * (size_t)PAGE);
    check(status == CUDA_SUCCESS, "8 pages: granted", "%d", (int)status);
    check(left_of(driver) < PAGE, "nothing is left", "%zu", left_of(driver));
    is_told_by_nvml();
    mark("full");
    DO(driver->free_linear(exact));

    CUmemAllocationProp kind = on_device();
    CUmemGenericAllocationHandle handle;
    status = driver->create(&handle, 9 * (size_t)PAGE, &kind, 0);
    check(status == CUDA_ERROR_OUT_OF_MEMORY, "a handle of 9 pages: refused", "%d", (int)status);
    DO(driver->create(&handle, 8 * (size_t)PAGE, &kind, 0));
    DO(driver->reserve(&place, 8 * (size_t)PAGE, 0, 0, 0));
    DO(driver->map(place, 8 * (size_t)PAGE, 0, handle, 0));
    DO(driver->release(handle));
    check(left_of(driver) < PAGE, "what is mapped is charged", "%zu", left_of(driver));
    DO(driver->unmap(place, 8 * (size_t)PAGE));
    check(left_of(driver) / PAGE > 0, "what is mapped nowhere is back", "%zu pages", left_of(driver) / PAGE);

    CUstream stream;
    DO(driver->stream_create(&stream, CU_STREAM_NON_BLOCKING));
    status = driver->allocate_async(&more, PIECE, stream);
    check(status == CUDA_ERROR_OUT_OF_MEMORY, "a piece where there is no room: refused", "%d", (int)status);
    DO(driver->free_linear(taken));
    DO(driver->allocate_async(&exact, PIECE, stream));
    check(left_of(driver) + PIECE <= all, "what a pool has is charged", "%zu of %zu left", left_of(driver), all);
    DO(driver->set_bytes_async(exact, 1, PIECE, stream));
    DO(driver->free_async(exact, stream));
    DO(driver->stream_synchronize(stream));
    CUmemoryPool pool;
    DO(driver->default_pool(&pool, 0));
    DO(driver->trim_pool(pool, 0));
    check(left_of(driver) + GROWN_MAX >= all, "everything is back", "%zu of %zu left", left_of(driver), all);
    return end();
}

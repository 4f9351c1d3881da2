// What a program is told about memory, by the driver and by NVML, and what its context costs it.
#include "driver.h"

enum { INSUFFICIENT_SIZE = 7 };
struct Memory { unsigned long long total, free, used; };
struct Memory2 { unsigned version; unsigned long long total, reserved, free, used; };
struct Process { unsigned pid; unsigned long long used; unsigned gpu, compute; };

int main(int count, char **words) {
    CHECK(count == 4);
    size_t share = strtoull(words[2], NULL, 10), own = strtoull(words[3], NULL, 10), total;
    if (!strcmp(words[1], "too-large")) {
        find("local");
        OK(cuInit(0));
        CHECK(cuDevicePrimaryCtxRetain(&context, 0) == OUT_OF_MEMORY && context == NULL);
        return 0;
    }
    start("local");
    CHECK(charged() == own && given() == own);
    Pointer taken;
    OK(cuMemAlloc(&taken, 1 << 20));
    CHECK(charged() == own + (1 << 20) && given() == charged());
    OK(cuDeviceTotalMem(&total, 0));
    CHECK(total == share && left() == share - own - (1 << 20));

    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    CHECK(nvml);
    int (*init)(void) = dlsym(nvml, "nvmlInit_v2");
    int (*by_index)(unsigned, Handle *) = dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
    int (*info)(Handle, struct Memory *) = dlsym(nvml, "nvmlDeviceGetMemoryInfo");
    int (*info2)(Handle, struct Memory2 *) = dlsym(nvml, "nvmlDeviceGetMemoryInfo_v2");
    int (*processes)(Handle, unsigned *, struct Process *) = dlsym(nvml, "nvmlDeviceGetComputeRunningProcesses_v3");
    CHECK(init && by_index && info && info2 && processes);
    Handle device;
    struct Memory memory;
    struct Memory2 memory2 = { .version = sizeof memory2 | 2 << 24 };
    struct Process list[4];
    unsigned length = 4;
    OK(init());
    OK(by_index(0, &device));
    OK(info(device, &memory));
    CHECK(memory.total == share && memory.used == own + (1 << 20) && memory.free == share - memory.used);
    OK(info2(device, &memory2));
    CHECK(memory2.total == share && memory2.used == memory.used && memory2.free == memory.free);
    OK(processes(device, &length, list));
    CHECK(length == 1 && list[0].pid == (unsigned)getpid() && list[0].used == memory.used);
    length = 0;
    CHECK(processes(device, &length, NULL) == INSUFFICIENT_SIZE && length >= 1);

    OK(cuMemFree(taken));
    OK(cuDevicePrimaryCtxRelease(0));
    OK(info(device, &memory));
    CHECK(memory.used == 0 && memory.free == share);
    length = 4;
    OK(processes(device, &length, list));
    CHECK(length == 0);
    puts("done");
}

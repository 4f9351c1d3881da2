/* A program in C that was never told what drives it. */

#include "driver.h"

/* Memory of every kind holds what was written to it, from the host and from the device. */
static void contents(void) {
    unsigned char there[4096], back[4096];
    CUdeviceptr linear, pitched, managed;
    size_t pitch;
    void *pinned;
    int kind;
    for (int i = 0; i < 4096; i++) there[i] = (unsigned char)(i * 7);
    OK(cuMemAlloc_v2(&linear, 4096));
    OK(cuMemcpyHtoD_v2(linear, there, 4096));
    OK(cuMemcpyDtoH_v2(back, linear, 4096));
    CHECK(memcmp(there, back, 4096) == 0);

    OK(cuMemAllocPitch_v2(&pitched, &pitch, 64, 64, 4));
    Copy2D up = {{0, 0, 1, there, 0, NULL, 64}, {0, 0, 2, NULL, pitched, NULL, pitch}, 64, 64};
    Copy2D down = {{0, 0, 2, NULL, pitched, NULL, pitch}, {0, 0, 1, back, 0, NULL, 64}, 64, 64};
    memset(back, 0, 4096);
    OK(cuMemcpy2D_v2(&up));
    OK(cuMemcpy2D_v2(&down));
    CHECK(memcmp(there, back, 4096) == 0);
    OK(cuMemcpyDtoH_v2(back, pitched + pitch, 64));
    CHECK(memcmp(there + 64, back, 64) == 0);

    OK(cuMemAllocManaged(&managed, 4096, 1));
    memcpy((void *)managed, there, 4096);
    OK(cuMemcpyDtoH_v2(back, managed + 1, 4095));
    CHECK(memcmp(there + 1, back, 4095) == 0);
    OK(cuMemcpyHtoD_v2(managed, there + 1, 16));
    CHECK(memcmp((void *)managed, there + 1, 16) == 0);
    OK(cuMemcpyHtoD_v2(managed, there, 16));
    Copy2D rows = {{0, 0, 2, NULL, managed, NULL, 64}, {0, 0, 2, NULL, pitched, NULL, pitch}, 64, 64};
    OK(cuMemsetD32_v2(pitched, 0, 16));
    OK(cuMemcpy2D_v2(&rows));
    OK(cuMemcpyDtoH_v2(back, pitched, 64));
    CHECK(memcmp(there, back, 64) == 0);
    OK(cuMemcpyDtoD_v2(linear, managed, 2048));
    OK(cuMemcpyDtoH_v2(back, linear, 2048));
    CHECK(memcmp(there, back, 2048) == 0);
    OK(cuMemsetD32_v2(managed, 0x01020304, 1024));
    OK(cuCtxSynchronize());
    CHECK(((unsigned *)managed)[1023] == 0x01020304);

    OK(cuMemHostAlloc(&pinned, 4096, 0));
    OK(cuPointerGetAttribute(&kind, 2, (CUdeviceptr)(uintptr_t)pinned));
    CHECK(kind == 1);
    OK(cuPointerGetAttribute(&kind, 2, linear + 4095));
    CHECK(kind == 2);
    REFUSED(1, cuPointerGetAttribute(&kind, 2, (CUdeviceptr)(uintptr_t)there));
    OK(cuMemFreeHost(pinned));
    OK(cuMemFree_v2(managed));
    OK(cuMemFree_v2(pitched));
    OK(cuMemFree_v2(linear));
    REFUSED(1, cuMemFree_v2(linear));
    /* Where streams are simulated with a seed, this is a matter of order: accepted, and reported. */
    if (!getenv("BURSAR_SEED")) REFUSED(1, cuMemcpyHtoD_v2(linear, there, 1));
}

static volatile int may_end = 0, ended = 0, refused = -1;

static void waits(void *data) {
    size_t bytes;
    refused = cuMemGetInfo_v2(&bytes, NULL);
    while (!may_end) usleep(100);
    *(volatile int *)data = 1;
}

static void called_back(CUstream stream, CUresult status, void *data) {
    (void)stream;
    *(volatile int *)data += 1 + status;
}

/* A host function may wait for its own program, and whatever comes after it on its stream waits for it. */
static void order(void) {
    CUstream one, other;
    CUevent before, after;
    CUdeviceptr memory;
    float milliseconds = -1;
    OK(cuStreamCreate(&one, 1));
    OK(cuStreamCreate(&other, 1));
    OK(cuEventCreate(&before, 0));
    OK(cuEventCreate(&after, 0));
    OK(cuMemAlloc_v2(&memory, 64));
    OK(cuEventRecord(before, one));
    OK(cuLaunchHostFunc(one, waits, (void *)&ended));
    OK(cuMemsetD8Async(memory, 1, 64, one));
    OK(cuStreamAddCallback(one, called_back, (void *)&ended, 0));
    OK(cuEventRecord(after, one));
    OK(cuStreamWaitEvent(other, after, 0));
    while (refused < 0) usleep(100);
    CHECK(refused == 800);
    REFUSED(600, cuStreamQuery(one));
    REFUSED(600, cuEventQuery(after));
    REFUSED(600, cuStreamQuery(other));
    REFUSED(600, cuEventElapsedTime(&milliseconds, before, after));
    may_end = 1;
    OK(cuEventSynchronize(after));
    CHECK(ended == 2);
    OK(cuStreamSynchronize(other));
    OK(cuEventElapsedTime(&milliseconds, before, after));
    CHECK(milliseconds >= 0);
    OK(cuMemFree_v2(memory));
}

/* A capture forbids calls that might wait, unless the thread says that it does not mind. */
static void captures(void) {
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    CUcontext context;
    CUdeviceptr memory;
    unsigned char bytes[64];
    int mode = 2;
    OK(cuStreamCreate(&stream, 1));
    OK(cuStreamBeginCapture_v2(stream, 0));
    REFUSED(401, cuStreamBeginCapture_v2(stream, 0));
    REFUSED(900, cuStreamSynchronize(stream));
    REFUSED(901, cuStreamEndCapture(stream, &graph));
    OK(cuStreamBeginCapture_v2(stream, 0));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == 0);
    OK(cuMemAlloc_v2(&memory, 64));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphDestroy(graph));
    OK(cuMemFree_v2(memory));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    OK(cuStreamBeginCapture_v2(stream, 0));
    REFUSED(900, cuMemAlloc_v2(&memory, 64));
    REFUSED(901, cuStreamEndCapture(stream, &graph));
    CHECK(graph == NULL);
    OK(cuMemAlloc_v2(&memory, 64));
    OK(cuMemsetD32_v2(memory, 0, 16));
    OK(cuStreamBeginCapture_v2(stream, 2));
    OK(cuMemsetD8Async(memory, 5, 64, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    OK(cuMemcpyDtoH_v2(bytes, memory, 64));
    CHECK(bytes[0] == 0);
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH_v2(bytes, memory, 64));
    CHECK(bytes[0] == 5 && bytes[63] == 5);
    OK(cuGraphExecDestroy(exec));
    OK(cuMemFree_v2(memory));
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuStreamCreate(&stream, 1));
    OK(cuStreamBeginCapture_v2(stream, 2));
    OK(cuCtxDestroy_v2(context));
    REFUSED(400, cuStreamEndCapture(stream, &graph));
}

static void all(void) {
    void *module;
    size_t before;
    start();
    before = free_memory();
    contents();
    order();
    captures();
    REFUSED(801, cuModuleLoadData(&module, "device code"));
    REFUSED(801, cuModuleLoadData(&module, "device code"));
    OK(cuCtxSynchronize());
    CHECK(free_memory() == before);
}

/* Takes memory and keeps it until somebody closes standard input, or for good. */
static void hold(size_t bytes) {
    CUdeviceptr memory;
    char byte;
    start();
    OK(cuMemAlloc_v2(&memory, bytes));
    printf("held\n");
    fflush(stdout);
    CHECK(read(0, &byte, 1) == 0);
}

/* Two streams write to the same memory; nothing orders them, or an event does. */
static void race(int is_ordered) {
    CUstream one, other;
    CUevent event;
    CUdeviceptr memory;
    start();
    OK(cuStreamCreate(&one, 1));
    OK(cuStreamCreate(&other, 1));
    OK(cuEventCreate(&event, 2));
    OK(cuMemAlloc_v2(&memory, 64));
    OK(cuMemsetD8Async(memory, 1, 64, one));
    OK(cuEventRecord(event, one));
    if (is_ordered) OK(cuStreamWaitEvent(other, event, 0));
    OK(cuMemsetD8Async(memory, 2, 64, other));
    OK(cuCtxSynchronize());
    OK(cuMemFree_v2(memory));
}

/* A process that is forked off has no driver. */
static void forks(void) {
    int status;
    start();
    pid_t child = fork();
    if (child == 0) {
        size_t bytes;
        _exit(cuMemGetInfo_v2(&bytes, NULL) == 3 && cuInit(0) == 3 ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    free_memory();
}

/* Maps physical memory and lets the device use it. */
static CUdeviceptr mapped(unsigned long long pages) {
    CUdeviceptr memory;
    Access access = {{1, 0}, 3};
    OK(cuMemAddressReserve(&memory, PAGE, 0, 0, 0));
    OK(cuMemMap(memory, PAGE, 0, pages, 0));
    OK(cuMemSetAccess(memory, PAGE, &access, 1));
    return memory;
}

static unsigned first_word(CUdeviceptr memory) {
    unsigned word;
    OK(cuMemcpyDtoH_v2(&word, memory, 4));
    return word;
}

/* Shares memory of both kinds with another process, which finds what was written there and writes something else. */
static void share(const char *self) {
    Properties properties = {1, 1, {1, 0}, NULL, {0}};
    unsigned long long pages;
    CUdeviceptr physical, linear;
    IpcHandle handle;
    int descriptor, status;
    char number[16], text[129];
    start();
    OK(cuMemCreate(&pages, PAGE, &properties, 0));
    physical = mapped(pages);
    OK(cuMemAlloc_v2(&linear, 100000));
    OK(cuMemsetD32_v2(physical, 0x11111111, 1024));
    OK(cuMemsetD32_v2(linear, 0x22222222, 1024));
    REFUSED(801, cuMemExportToShareableHandle(&descriptor, pages, 2, 0));
    OK(cuMemExportToShareableHandle(&descriptor, pages, 1, 0));
    OK(cuIpcGetMemHandle(&handle, linear + 5));
    REFUSED(201, cuIpcOpenMemHandle_v2(&physical, handle, 1));
    REFUSED(1, cuIpcGetMemHandle(&handle, physical));
    OK(cuIpcGetMemHandle(&handle, linear));
    snprintf(number, sizeof number, "%d", dup(descriptor));
    for (int i = 0; i < 64; i++) sprintf(text + 2 * i, "%02x", (unsigned char)handle.bytes[i]);
    pid_t child = vfork();
    if (child == 0) {
        execl(self, self, "borrow", number, text, NULL);
        _exit(127);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CHECK(first_word(physical) == 0x33333333);
    CHECK(first_word(linear) == 0x44444444);
    OK(cuMemFree_v2(linear));
    OK(cuMemUnmap(physical, PAGE));
    OK(cuMemRelease(pages));
}

static void borrow(int descriptor, const char *text) {
    unsigned long long pages;
    CUdeviceptr physical, linear, again;
    IpcHandle handle;
    size_t before;
    for (int i = 0; i < 64; i++) {
        unsigned byte;
        sscanf(text + 2 * i, "%2x", &byte);
        handle.bytes[i] = (char)byte;
    }
    start();
    before = free_memory();
    REFUSED(1, cuMemImportFromShareableHandle(&pages, (void *)0, 1));
    OK(cuMemImportFromShareableHandle(&pages, (void *)(uintptr_t)descriptor, 1));
    physical = mapped(pages);
    OK(cuIpcOpenMemHandle_v2(&linear, handle, 1));
    OK(cuIpcOpenMemHandle_v2(&again, handle, 1));
    CHECK(linear == again);
    CHECK(free_memory() == before);
    CHECK(first_word(physical) == 0x11111111);
    CHECK(first_word(linear) == 0x22222222);
    OK(cuMemsetD32_v2(physical, 0x33333333, 1024));
    OK(cuMemsetD32_v2(linear, 0x44444444, 1024));
    OK(cuCtxSynchronize());
    REFUSED(1, cuMemFree_v2(linear));
    OK(cuIpcCloseMemHandle(linear));
    CHECK(first_word(linear) == 0x44444444);
    OK(cuIpcCloseMemHandle(linear));
    REFUSED(1, cuIpcCloseMemHandle(linear));
    OK(cuMemUnmap(physical, PAGE));
    OK(cuMemRelease(pages));
    handle.bytes[0] ^= 1;
    REFUSED(1, cuIpcOpenMemHandle_v2(&linear, handle, 1));
}

int main(int count, char **arguments) {
    const char *mode = count > 1 ? arguments[1] : "all";
    if (strcmp(mode, "all") == 0) all();
    if (strcmp(mode, "hold") == 0) hold(strtoull(arguments[2], NULL, 10));
    if (strcmp(mode, "race") == 0) race(0);
    if (strcmp(mode, "ordered") == 0) race(1);
    if (strcmp(mode, "fork") == 0) forks();
    if (strcmp(mode, "share") == 0) share(arguments[0]);
    if (strcmp(mode, "borrow") == 0) borrow(atoi(arguments[2]), arguments[3]);
    if (strcmp(mode, "free") == 0) {
        start();
        printf("%zu\n", free_memory());
    }
    return 0;
}

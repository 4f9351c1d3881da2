// A program of the CUDA runtime that takes memory in every way there is, one way a run. It is built with the shared and with the
// static runtime, and linked with the driver.
//
// For every way: a request for all that is left is granted, and one byte or one row more is refused with the runtime's own status; what is
// charged is what the card has given out, to a few pages of 2 MiB; in the end everything is back.
#include "trial.h"
#include <cuda.h>
#include <cuda_runtime.h>
#include <sys/wait.h>

#ifdef __CUDACC__
__global__ static void fill(unsigned char *memory, size_t bytes) {
    size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x; at < bytes; at += stride)
        memory[at] = 1;
}
static void use(void *memory, size_t bytes) { fill<<<256, 256>>>((unsigned char *)memory, bytes); }
#else
static void use(void *memory, size_t bytes) { cudaMemset(memory, 1, bytes); }
#endif

#define OK(call) \
    do { \
        cudaError_t status_ = (call); \
        if (status_ != cudaSuccess) { \
            check(0, #call, "%s", cudaGetErrorName(status_)); \
            exit(end()); \
        } \
    } while (0)

#define GRANTED(name, call) \
    do { \
        cudaError_t status_ = (call); \
        cudaGetLastError(); \
        if (!check(status_ == cudaSuccess, name ": granted", "%s", cudaGetErrorName(status_))) \
            exit(end()); \
    } while (0)

#define REFUSED(name, call) \
    do { \
        cudaError_t status_ = (call); \
        cudaGetLastError(); \
        check(status_ == cudaErrorMemoryAllocation, name ": refused", "%s", cudaGetErrorName(status_)); \
    } while (0)

static size_t left(void) {
    size_t free = 0, total = 0;
    OK(cudaMemGetInfo(&free, &total));
    return free;
}

static size_t pages_left(void) { return left() / PAGE; }

// The most that charges and the card may be apart: the driver takes a page here and there for itself.
enum { APART_MAX = 4 * PAGE };

// What was charged and given out when the context was there, and the most that both were apart since.
static long long most_apart;
static size_t left_at_first;
static struct Answer at_first;

// Compares what is charged with what the card has given out, both since the context was there.
static void agrees(const char *what) {
    long long charged = 0, given = 0, apart = 0;
    if (at_first.given < 0)
        return skip(what, "nobody can say what the card has given out");
    // The card's figure may come a moment late.
    for (int tries = 0; tries < 40; tries++, usleep(5000)) {
        charged = (long long)left_at_first - (long long)left();
        given = look().given - at_first.given;
        apart = charged - given;
        if (llabs(apart) <= PAGE)
            break;
    }
    most_apart = llabs(apart) > llabs(most_apart) ? apart : most_apart;
    check(llabs(apart) <= APART_MAX, what, "charged %.1f MiB, given %.1f MiB, apart %+.3f MiB", charged / 1048576.0, given / 1048576.0, apart / 1048576.0);
}

// Compares two figures of what is left.
static int is_as_before(size_t now, size_t before) { return now <= before + GROWN_MAX && before <= now + GROWN_MAX; }

static void is_back(const char *what) {
    check(is_as_before(left(), left_at_first), what, "%zu left, %zu at first", left(), left_at_first);
    agrees(what);
}

// Takes all that is left but so many pages, and less than one more. When little is left, what the driver took for itself is charged too: so
// it is taken once for that, and then again.
static void *leave(size_t pages) {
    void *taken = NULL;
    usleep(LOOK_US);
    for (int tries = 0; tries < 4; tries++) {
        size_t there = pages_left();
        if (there > pages)
            OK(cudaMalloc(&taken, (there - pages) * PAGE));
        if (pages_left() == pages)
            break;
        OK(cudaFree(taken));
        taken = NULL;
    }
    check(pages_left() == pages, "so much is left", "%zu pages, %zu wanted", pages_left(), pages);
    return taken;
}

static void linear(void) {
    void *taken = leave(8), *exact = NULL, *more = NULL, *small[1000];
    REFUSED("8 pages and a byte", cudaMalloc(&more, 8 * (size_t)PAGE + 1));
    GRANTED("8 pages", cudaMalloc(&exact, 8 * (size_t)PAGE));
    use(exact, 8 * (size_t)PAGE);
    OK(cudaDeviceSynchronize());
    REFUSED("one page more", cudaMalloc(&more, PAGE));
    agrees("the share is full");
    mark("full");
    OK(cudaFree(exact));
    agrees("8 pages are back");
    OK(cudaFree(taken));
    is_back("linear memory");
    REFUSED("more than the share", cudaMalloc(&more, share_bytes() + 1));
    for (int i = 0; i < 1000; i++)
        OK(cudaMalloc(&small[i], 256 + 64 * (i % 7)));
    agrees("small allocations");
    for (int i = 0; i < 1000; i++)
        OK(cudaFree(small[i]));
    agrees("small allocations are back");
}

static void pitch(void) {
    void *taken = leave(8), *exact = NULL, *more = NULL;
    size_t pitch = 0;
    REFUSED("9 rows of a page", cudaMallocPitch(&more, &pitch, PAGE, 9));
    GRANTED("8 rows of a page", cudaMallocPitch(&exact, &pitch, PAGE, 8));
    check(pitch == PAGE, "the pitch", "%zu", pitch);
    agrees("rows");
    mark("full");
    OK(cudaFree(exact));
    OK(cudaFree(taken));
    GRANTED("rows that are padded", cudaMallocPitch(&exact, &pitch, 1000, 1000000));
    agrees("rows that are padded");
    OK(cudaFree(exact));
    is_back("pitched memory");
}

// An array of one kind, made by `create` and ended by `destroy`, of so many bytes of elements.
template <typename Array> static void layout(const char *name, size_t elements, cudaError_t (*create)(Array *), cudaError_t (*destroy)(Array)) {
    Array array, more;
    cudaError_t status = create(&array);
    if (!check(status == cudaSuccess, name, "%s", cudaGetErrorName(status)))
        return;
    size_t charged = left_at_first - left();
    check(charged >= elements && charged <= 2 * elements + PAGE, name, "%.1f MiB of elements are charged as %.1f MiB", elements / 1048576.0, charged / 1048576.0);
    agrees(name);
    OK(destroy(array));
    is_back(name);
    size_t pages = (charged + PAGE - 1) / PAGE;
    void *taken = leave(pages);
    status = create(&array);
    cudaGetLastError();
    if (check(status == cudaSuccess, name, "in exactly as many pages as it takes: %s", cudaGetErrorName(status))) {
        mark("full");
        status = create(&more);
        cudaGetLastError();
        check(status == cudaErrorMemoryAllocation, name, "a second one where there is no room: %s", cudaGetErrorName(status));
        OK(destroy(array));
    }
    OK(cudaFree(taken));
    taken = leave((elements + PAGE - 1) / PAGE - 1);
    status = create(&more);
    cudaGetLastError();
    check(status == cudaErrorMemoryAllocation, name, "in a page less than its elements: %s", cudaGetErrorName(status));
    OK(cudaFree(taken));
    is_back(name);
}

static cudaChannelFormatDesc four_floats(void) { return cudaCreateChannelDesc(32, 32, 32, 32, cudaChannelFormatKindFloat); }

static cudaError_t make_plane(cudaArray_t *array) {
    cudaChannelFormatDesc element = four_floats();
    return cudaMallocArray(array, &element, 16384, 4096, 0);
}

static cudaError_t make_solid(cudaArray_t *array) {
    cudaChannelFormatDesc element = four_floats();
    return cudaMalloc3DArray(array, &element, make_cudaExtent(512, 512, 256), 0);
}

static cudaError_t make_mipmap(cudaMipmappedArray_t *array) {
    cudaChannelFormatDesc element = four_floats();
    return cudaMallocMipmappedArray(array, &element, make_cudaExtent(8192, 8192, 0), 14, 0);
}

static void arrays(void) {
    layout<cudaArray_t>("an array of two dimensions", (size_t)16384 * 4096 * 16, make_plane, cudaFreeArray);
    layout<cudaArray_t>("an array of three dimensions", (size_t)512 * 512 * 256 * 16, make_solid, cudaFreeArray);
}

static void mipmaps(void) {
    size_t elements = 0;
    for (size_t side = 8192; side > 0; side /= 2)
        elements += side * side * 16;
    layout<cudaMipmappedArray_t>("a mipmap", elements, make_mipmap, cudaFreeMipmappedArray);
}

static void managed(void) {
    void *taken = leave(32), *exact = NULL, *more = NULL;
    REFUSED("32 pages and a byte", cudaMallocManaged(&more, 32 * (size_t)PAGE + 1, cudaMemAttachGlobal));
    GRANTED("32 pages", cudaMallocManaged(&exact, 32 * (size_t)PAGE, cudaMemAttachGlobal));
    // It is on the card once the card has written it.
    use(exact, 32 * (size_t)PAGE);
    OK(cudaDeviceSynchronize());
    check(left() < PAGE, "managed memory is charged", "%zu left", left());
    struct Answer now = mark("full");
    see("managed memory on the card", "%.1f MiB more than charged", (double)(now.given - now.charged) / 1048576.0);
    OK(cudaFree(exact));
    OK(cudaFree(taken));
    // The charge is back. The driver keeps the pages on the card for managed memory to come, of whichever process.
    check(is_as_before(left(), left_at_first), "managed memory", "%zu left, %zu at first", left(), left_at_first);
}

enum { PIECE = 32 << 20, BLOCKS = 4096 };

// Fills the share with blocks of a pool, first large ones and then of a piece, and returns how many there are.
static int fill_pool(cudaMemPool_t pool, cudaStream_t stream, void **blocks) {
    int count = 0;
    cudaError_t status = cudaSuccess;
    for (size_t bytes : { (size_t)256 << 20, (size_t)PIECE }) {
        do {
            status = pool ? cudaMallocFromPoolAsync(&blocks[count], bytes, pool, stream) : cudaMallocAsync(&blocks[count], bytes, stream);
            cudaGetLastError();
        } while (status == cudaSuccess && ++count < BLOCKS);
        check(status == cudaErrorMemoryAllocation, "a full pool refuses", "%s after %d blocks", cudaGetErrorName(status), count);
    }
    check(left() < PIECE, "pools can have the share but for a piece", "%.1f MiB left", left() / 1048576.0);
    return count;
}

static void ordered(void) {
    static void *blocks[BLOCKS];
    cudaStream_t stream;
    cudaMemPool_t pool;
    OK(cudaStreamCreate(&stream));
    OK(cudaDeviceGetDefaultMemPool(&pool, 0));
    int count = fill_pool(NULL, stream, blocks);
    OK(cudaStreamSynchronize(stream));
    agrees("a pool is full");
    mark("full");
    for (int i = 0; i < count; i++)
        OK(cudaFreeAsync(blocks[i], stream));
    OK(cudaStreamSynchronize(stream));
    agrees("a pool has shrunk");
    OK(cudaMemPoolTrimTo(pool, 0));
    is_back("a pool");
    // What a pool keeps is given back before anybody is refused.
    unsigned long long all = ~0ull, none = 0;
    OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all));
    void *block = NULL;
    OK(cudaMallocAsync(&block, (size_t)1 << 30, stream));
    OK(cudaFreeAsync(block, stream));
    OK(cudaStreamSynchronize(stream));
    check(left() + ((size_t)1 << 30) <= left_at_first, "a pool that keeps what was freed is charged for it", "%zu left", left());
    agrees("a pool keeps what was freed");
    GRANTED("linear memory that a pool had kept", cudaMalloc(&block, (left_at_first - GROWN_MAX) / PAGE * PAGE));
    agrees("a pool has given back what it kept");
    OK(cudaFree(block));
    OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &none));
    OK(cudaMemPoolTrimTo(pool, 0));
    is_back("pools");
}

static void pools(void) {
    static void *blocks[BLOCKS];
    cudaStream_t stream;
    cudaMemPool_t pool;
    cudaMemPoolProps kind = {};
    kind.allocType = cudaMemAllocationTypePinned;
    kind.location.type = cudaMemLocationTypeDevice;
    OK(cudaStreamCreate(&stream));
    OK(cudaMemPoolCreate(&pool, &kind));
    int count = fill_pool(pool, stream, blocks);
    OK(cudaStreamSynchronize(stream));
    agrees("a pool of the program's own is full");
    mark("full");
    for (int i = 1; i < count; i++)
        OK(cudaFreeAsync(blocks[i], stream));
    OK(cudaMemPoolDestroy(pool));
    OK(cudaStreamSynchronize(stream));
    agrees("a pool that is destroyed with a block in use");
    OK(cudaFreeAsync(blocks[0], stream));
    OK(cudaStreamSynchronize(stream));
    is_back("a pool that is destroyed");
}

#define DRIVER(call) \
    do { \
        CUresult status_ = (call); \
        if (status_ != CUDA_SUCCESS) { \
            check(0, #call, "%d", (int)status_); \
            exit(end()); \
        } \
    } while (0)

static void handles(void) {
    CUmemAllocationProp kind = {};
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    size_t unit = 0;
    DRIVER(cuMemGetAllocationGranularity(&unit, &kind, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    check(unit == PAGE, "the granularity", "%zu", unit);
    void *taken = leave(8);
    CUmemGenericAllocationHandle handle, more;
    CUresult status = cuMemCreate(&more, 9 * (size_t)PAGE, &kind, 0);
    check(status == CUDA_ERROR_OUT_OF_MEMORY, "9 pages: refused", "%d", (int)status);
    DRIVER(cuMemCreate(&handle, 8 * (size_t)PAGE, &kind, 0));
    agrees("a handle");
    CUdeviceptr place;
    DRIVER(cuMemAddressReserve(&place, 64 * (size_t)PAGE, 0, 0, 0));
    DRIVER(cuMemMap(place, 8 * (size_t)PAGE, 0, handle, 0));
    CUmemAccessDesc access = {};
    access.location = kind.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    DRIVER(cuMemSetAccess(place, 8 * (size_t)PAGE, &access, 1));
    DRIVER(cuMemsetD8(place, 1, 8 * (size_t)PAGE));
    DRIVER(cuMemRelease(handle));
    check(pages_left() == 0, "what is mapped stays charged when its handle is released", "%zu pages left", pages_left());
    agrees("a mapping");
    mark("full");
    DRIVER(cuMemUnmap(place, 8 * (size_t)PAGE));
    check(is_as_before(left(), 8 * (size_t)PAGE) && pages_left() > 0, "what is mapped nowhere is back", "%zu pages left", pages_left());
    DRIVER(cuMemAddressFree(place, 64 * (size_t)PAGE));
    OK(cudaFree(taken));
    is_back("physical memory");
}

// Makes a graph that allocates and frees so many bytes.
static cudaGraph_t graph_of(size_t bytes) {
    cudaGraph_t graph;
    cudaGraphNode_t allocation, release;
    cudaMemAllocNodeParams request = {};
    request.poolProps.allocType = cudaMemAllocationTypePinned;
    request.poolProps.location.type = cudaMemLocationTypeDevice;
    request.bytesize = bytes;
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddMemAllocNode(&allocation, graph, NULL, 0, &request));
    OK(cudaGraphAddMemFreeNode(&release, graph, &allocation, 1, request.dptr));
    return graph;
}

static cudaError_t launch(cudaGraph_t graph, cudaStream_t stream, cudaGraphExec_t *made) {
    *made = NULL;
    cudaError_t status = cudaGraphInstantiate(made, graph, 0);
    if (status == cudaSuccess)
        status = cudaGraphLaunch(*made, stream);
    if (status == cudaSuccess)
        status = cudaStreamSynchronize(stream);
    cudaGetLastError();
    return status;
}

static void graphs(void) {
    cudaStream_t stream;
    cudaGraphExec_t made, more;
    OK(cudaStreamCreate(&stream));
    cudaGraph_t graph = graph_of((size_t)1 << 30), large = graph_of((size_t)12 << 30);
    GRANTED("a graph of 1 GiB", launch(graph, stream, &made));
    check(left() + ((size_t)1 << 30) <= left_at_first, "the memory of a graph is charged", "%zu left", left());
    agrees("the memory of a graph");
    REFUSED("a graph of 12 GiB", launch(large, stream, &more));
    if (more)
        OK(cudaGraphExecDestroy(more));
    agrees("a graph was refused");
    mark("full");
    OK(cudaGraphExecDestroy(made));
    OK(cudaGraphDestroy(graph));
    OK(cudaGraphDestroy(large));
    OK(cudaDeviceGraphMemTrim(0));
    agrees("the memory of a graph is back");
    // The same by capturing a stream.
    void *block = NULL;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    OK(cudaMallocAsync(&block, (size_t)1 << 30, stream));
    OK(cudaMemsetAsync(block, 1, (size_t)1 << 30, stream));
    OK(cudaFreeAsync(block, stream));
    OK(cudaStreamEndCapture(stream, &graph));
    GRANTED("a captured graph of 1 GiB", launch(graph, stream, &made));
    agrees("the memory of a captured graph");
    OK(cudaGraphExecDestroy(made));
    OK(cudaGraphDestroy(graph));
    OK(cudaDeviceGraphMemTrim(0));
    is_back("graphs");
}

static void handle_path(char *path, size_t length) { snprintf(path, length, "%s/ipc-handle", folder()); }

// Opens what another process has exported: that one pays for it.
static void imports(void) {
    cudaIpcMemHandle_t handle;
    char path[4096];
    handle_path(path, sizeof path);
    FILE *file = fopen(path, "r");
    if (!check(file && fread(&handle, sizeof handle, 1, file) == 1, "a handle arrives", "%s", path))
        exit(end());
    fclose(file);
    size_t before = left();
    void *block = NULL;
    GRANTED("what another process has", cudaIpcOpenMemHandle(&block, handle, cudaIpcMemLazyEnablePeerAccess));
    use(block, (size_t)1 << 30);
    OK(cudaDeviceSynchronize());
    check(is_as_before(left(), before), "what is imported costs nothing", "%zu left, %zu before", left(), before);
    // Before a refusal, the library looks at what this process has of the card: that is not this process's own.
    void *more = NULL;
    usleep(LOOK_US);
    REFUSED("more than the share", cudaMalloc(&more, share_bytes() + 1));
    struct Answer now = mark("imported");
    check(now.charged_here < (long long)1 << 30, "its owner pays", "%lld are charged here", now.charged_here);
    OK(cudaIpcCloseMemHandle(block));
    check(is_as_before(left(), before), "after closing it", "%zu left, %zu before", left(), before);
}

static void ipc(const char *self) {
    void *block = NULL;
    cudaIpcMemHandle_t handle;
    OK(cudaMalloc(&block, (size_t)1 << 30));
    cudaError_t status = cudaIpcGetMemHandle(&handle, block);
    if (status != cudaSuccess) {
        cudaGetLastError();
        skip("memory of another process", "this machine does not export memory: %s", cudaGetErrorName(status));
        OK(cudaFree(block));
        return;
    }
    char path[4096];
    handle_path(path, sizeof path);
    FILE *file = fopen(path, "w");
    if (!check(file && fwrite(&handle, sizeof handle, 1, file) == 1, "a handle is sent", "%s", path))
        exit(end());
    fclose(file);
    size_t before = left();
    pid_t child = fork();
    if (child == 0) {
        execl(self, self, "import", (char *)NULL);
        _exit(127);
    }
    int ended = -1;
    waitpid(child, &ended, 0);
    check(ended == 0, "the process that imports", "%d", ended);
    check(is_as_before(left(), before), "what the other process took is back", "%zu left, %zu before", left(), before);
    unsigned char first = 0;
    OK(cudaMemcpy(&first, block, 1, cudaMemcpyDeviceToHost));
    check(first == 1, "what the other process wrote", "%d", first);
    OK(cudaFree(block));
    is_back("exported memory");
}

int main(int count, char **words) {
    const char *way = count > 1 ? words[1] : "";
    if (strcmp(way, "import"))
        begin();
    OK(cudaSetDevice(0));
    OK(cudaFree(0));
    // What the runtime takes when it is first used is there before anything is compared.
    void *first = NULL;
    OK(cudaMalloc(&first, PAGE));
    use(first, PAGE);
    OK(cudaDeviceSynchronize());
    OK(cudaFree(first));
    if (!strcmp(way, "import")) {
        imports();
        return end();
    }
    size_t free = 0, total = 0;
    OK(cudaMemGetInfo(&free, &total));
    is_share(total);
    cudaDeviceProp facts;
    OK(cudaGetDeviceProperties(&facts, 0));
    check(facts.totalGlobalMem == share_bytes(), "and by the device's properties", "%zu", facts.totalGlobalMem);
    at_first = look();
    left_at_first = left();
    see("the context's charge", "%.1f MiB, given %.1f MiB", (double)(share_bytes() - left_at_first) / 1048576.0, (double)at_first.given / 1048576.0);
    if (!strcmp(way, "linear")) linear();
    else if (!strcmp(way, "pitch")) pitch();
    else if (!strcmp(way, "arrays")) arrays();
    else if (!strcmp(way, "mipmaps")) mipmaps();
    else if (!strcmp(way, "managed")) managed();
    else if (!strcmp(way, "ordered")) ordered();
    else if (!strcmp(way, "pools")) pools();
    else if (!strcmp(way, "handles")) handles();
    else if (!strcmp(way, "graphs")) graphs();
    else if (!strcmp(way, "ipc")) ipc(words[0]);
    else check(0, "the way is known", "%s", way);
    see("most apart", "%+.3f MiB", (double)most_apart / 1048576.0);
    return end();
}

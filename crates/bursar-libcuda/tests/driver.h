/* The declarations of programs in C that talk to the driver, and how they check what it answers. */

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct {
    int kind, id;
} Location;
typedef struct {
    int kind, handles;
    Location location;
    void *unused;
    unsigned char flags[8];
} Properties;
typedef struct {
    Location location;
    int flags;
} Access;
typedef struct {
    size_t x, y;
    int kind;
    const void *host;
    CUdeviceptr device;
    void *array;
    size_t pitch;
} Side;
typedef struct {
    Side from, to;
    size_t width, height;
} Copy2D;
typedef struct {
    char bytes[64];
} IpcHandle;

extern CUresult cuInit(unsigned);
extern CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
extern CUresult cuCtxSetCurrent(CUcontext);
extern CUresult cuCtxSynchronize(void);
extern CUresult cuDevicePrimaryCtxReset_v2(CUdevice);
extern CUresult cuCtxCreate_v2(CUcontext *, unsigned, CUdevice);
extern CUresult cuCtxDestroy_v2(CUcontext);
extern CUresult cuMemGetInfo_v2(size_t *, size_t *);
extern CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
extern CUresult cuMemFree_v2(CUdeviceptr);
extern CUresult cuMemAllocPitch_v2(CUdeviceptr *, size_t *, size_t, size_t, unsigned);
extern CUresult cuMemAllocManaged(CUdeviceptr *, size_t, unsigned);
extern CUresult cuMemHostAlloc(void **, size_t, unsigned);
extern CUresult cuMemFreeHost(void *);
extern CUresult cuMemcpyHtoD_v2(CUdeviceptr, const void *, size_t);
extern CUresult cuMemcpyDtoH_v2(void *, CUdeviceptr, size_t);
extern CUresult cuMemsetD8Async_ptsz(CUdeviceptr, unsigned char, size_t, CUstream);
extern CUresult cuStreamSynchronize_ptsz(CUstream);
extern CUresult cuMemcpyDtoD_v2(CUdeviceptr, CUdeviceptr, size_t);
extern CUresult cuMemcpy2D_v2(const Copy2D *);
extern CUresult cuMemsetD8Async(CUdeviceptr, unsigned char, size_t, CUstream);
extern CUresult cuMemsetD32_v2(CUdeviceptr, unsigned, size_t);
extern CUresult cuStreamCreate(CUstream *, unsigned);
extern CUresult cuStreamDestroy_v2(CUstream);
extern CUresult cuStreamSynchronize(CUstream);
extern CUresult cuStreamQuery(CUstream);
extern CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned);
extern CUresult cuStreamAddCallback(CUstream, void (*)(CUstream, CUresult, void *), void *, unsigned);
extern CUresult cuStreamBeginCapture_v2(CUstream, int);
extern CUresult cuStreamEndCapture(CUstream, CUgraph *);
extern CUresult cuThreadExchangeStreamCaptureMode(int *);
extern CUresult cuGraphDestroy(CUgraph);
extern CUresult cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long);
extern CUresult cuGraphLaunch(CUgraphExec, CUstream);
extern CUresult cuGraphExecDestroy(CUgraphExec);
extern CUresult cuLaunchHostFunc(CUstream, void (*)(void *), void *);
extern CUresult cuEventCreate(CUevent *, unsigned);
extern CUresult cuEventRecord(CUevent, CUstream);
extern CUresult cuEventQuery(CUevent);
extern CUresult cuEventSynchronize(CUevent);
extern CUresult cuEventElapsedTime(float *, CUevent, CUevent);
extern CUresult cuModuleLoadData(void **, const void *);
extern CUresult cuPointerGetAttribute(void *, int, CUdeviceptr);
extern CUresult cuMemCreate(unsigned long long *, size_t, const Properties *, unsigned long long);
extern CUresult cuMemRelease(unsigned long long);
extern CUresult cuMemAddressReserve(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
extern CUresult cuMemMap(CUdeviceptr, size_t, size_t, unsigned long long, unsigned long long);
extern CUresult cuMemUnmap(CUdeviceptr, size_t);
extern CUresult cuMemSetAccess(CUdeviceptr, size_t, const Access *, size_t);
extern CUresult cuMemExportToShareableHandle(void *, unsigned long long, int, unsigned long long);
extern CUresult cuMemImportFromShareableHandle(unsigned long long *, void *, int);
extern CUresult cuIpcGetMemHandle(IpcHandle *, CUdeviceptr);
extern CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *, IpcHandle, unsigned);
extern CUresult cuIpcCloseMemHandle(CUdeviceptr);
extern int nvmlInit_v2(void);
extern int nvmlDeviceGetHandleByIndex_v2(unsigned, void **);
extern int nvmlDeviceGetMemoryInfo(void *, unsigned long long *);

enum { PAGE = 2 << 20 };

static void expect(CUresult status, CUresult expected, const char *call, int line) {
    if (status != expected) {
        fprintf(stderr, "line %d: %s returned %d and not %d\n", line, call, status, expected);
        _exit(1);
    }
}

static void check(int is_true, const char *what, int line) {
    if (!is_true) {
        fprintf(stderr, "line %d: not %s\n", line, what);
        _exit(1);
    }
}

#define OK(call) expect(call, 0, #call, __LINE__)
#define REFUSED(status, call) expect(call, status, #call, __LINE__)
#define CHECK(condition) check(condition, #condition, __LINE__)

__attribute__((unused)) static CUcontext start(void) {
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    return context;
}

__attribute__((unused)) static size_t free_memory(void) {
    size_t bytes;
    OK(cuMemGetInfo_v2(&bytes, NULL));
    return bytes;
}

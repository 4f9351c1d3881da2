/* The functions of CUDA's driver that the programs of these tests call themselves, without its headers. */
#pragma once
#include <stddef.h>

typedef struct CUstream_st *CUstream;
typedef struct CUctx_st *CUcontext;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
extern int cuInit(unsigned);
extern int cuDevicePrimaryCtxRetain(CUcontext *, int);
extern int cuCtxSetCurrent(CUcontext);
extern int cuStreamCreate(CUstream *, unsigned);
extern int cuStreamDestroy_v2(CUstream);
extern int cuStreamSynchronize(CUstream);
extern int cuMemsetD8Async(unsigned long long, unsigned char, size_t, CUstream);
extern int cuMemcpyDtoDAsync_v2(unsigned long long, unsigned long long, size_t, CUstream);
extern int cuMemcpyDtoH_v2(void *, unsigned long long, size_t);
extern int cuStreamWaitEvent(CUstream, void *, unsigned);
extern int cuEventCreate(void **, unsigned);
extern int cuEventRecord(void *, CUstream);
extern int cuStreamBeginCapture_v2(CUstream, int);
extern int cuStreamEndCapture(CUstream, CUgraph *);
extern int cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long);
extern int cuGraphLaunch(CUgraphExec, CUstream);
extern int cuGraphExecDestroy(CUgraphExec);
extern int cuGraphDestroy(CUgraph);
extern int cuLaunchHostFunc(CUstream, void (*)(void *), void *);
extern int cuMemcpyHtoD_v2(unsigned long long, const void *, size_t);

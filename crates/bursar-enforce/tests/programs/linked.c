// A program, or a library for one, that is linked with the driver.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

enum { OUT_OF_MEMORY = 2 };
extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
extern int cuMemAlloc_v2(unsigned long long *, size_t), cuMemFree_v2(unsigned long long), cuMemGetInfo_v2(size_t *, size_t *);

// Takes the whole share of 64 MiB and is refused a byte more.
int take_all(void) {
    void *context;
    unsigned long long taken, more;
    size_t free, total;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
        return 2;
    if (cuMemGetInfo_v2(&free, &total) || free != 64 << 20 || total != free)
        return 3;
    if (cuMemAlloc_v2(&taken, 64 << 20) || cuMemAlloc_v2(&more, 1) != OUT_OF_MEMORY)
        return 4;
    // What comes next after this program or library is no way past the share.
    int (*next)(unsigned long long *, size_t) = (int (*)(unsigned long long *, size_t))dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    if (!next || next(&more, 1) != OUT_OF_MEMORY)
        return 5;
    if (dlsym(RTLD_NEXT, "cuNoSuchFunction") || !dlerror())
        return 6;
    return cuMemFree_v2(taken) || cuMemGetInfo_v2(&free, &total) || free != total;
}

int main(void) {
    return take_all();
}

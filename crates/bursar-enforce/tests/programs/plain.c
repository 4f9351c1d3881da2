// A program that looks for CUDA, as many do, on a machine without it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
    dlerror();
    if (dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") || !dlerror())
        return 1;
    void *self = dlopen(NULL, RTLD_NOW);
    if (dlsym(self, "cuMemAlloc_v2") || !dlerror())
        return 2;
    if (dlsym(self, "cuGetProcAddress") || dlsym(self, "nvmlDeviceGetMemoryInfo"))
        return 3;
    if (!dlsym(RTLD_DEFAULT, "getpid") || !dlsym(RTLD_NEXT, "getpid") || dlsym(RTLD_DEFAULT, "no_such_symbol"))
        return 4;
    puts("done");
    return 0;
}

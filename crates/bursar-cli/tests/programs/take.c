// A CUDA program that knows nothing of Bursar: takes memory until it is refused, says how much it got, and runs a command then.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **words) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context;
    int (*init)(unsigned) = dlsym(driver, "cuInit");
    int (*retain)(void **, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    int (*use)(void *) = dlsym(driver, "cuCtxSetCurrent");
    int (*allocate)(unsigned long long *, size_t) = dlsym(driver, "cuMemAlloc_v2");
    unsigned long long at;
    long taken = 0, most = atol(words[1]);
    if (init(0) || retain(&context, 0) || use(context))
        return 1;
    while (taken < most && allocate(&at, 1 << 20) == 0)
        taken++;
    printf("took %ld MiB\n", taken);
    fflush(stdout);
    return count > 2 ? system(words[2]) : 0;
}

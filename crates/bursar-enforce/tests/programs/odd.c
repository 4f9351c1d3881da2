// A program over the odd driver.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Result;
typedef unsigned long long Pointer;
enum { PAGE = 2 << 20, OUT_OF_MEMORY = 2 };

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)
#define OK(call) CHECK((call) == 0)
#define GET(type, name, symbol) Result(*name) type = dlsym(library, symbol); CHECK(name)

static Result (*info)(size_t *, size_t *), (*true_info)(size_t *, size_t *);

static size_t used(Result (*ask)(size_t *, size_t *)) {
    size_t free, total;
    OK(ask(&free, &total));
    return total - free;
}

static void check_charge(int line) {
    if (used(info) != used(true_info)) {
        fprintf(stderr, "line %d: %zu are charged and %zu given out\n", line, used(info), used(true_info));
        exit(1);
    }
}
#define SAME() check_charge(__LINE__)

int main(int count, char **words) {
    void *library = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
    CHECK(library);
    GET((unsigned), init, "cuInit");
    GET((void **, int), retain, "cuDevicePrimaryCtxRetain");
    GET((Pointer *, size_t), allocate, "cuMemAlloc_v2");
    GET((Pointer), release, "cuMemFree_v2");
    GET((Pointer *, size_t *, size_t, size_t, unsigned), allocate_rows, "cuMemAllocPitch_v2");
    GET((unsigned *, unsigned), allocate_short, "cuMemAlloc");
    GET((unsigned), release_short, "cuMemFree");
    GET((const char *, void **, int, uint64_t, int *), by_name, "cuGetProcAddress_v2");
    GET((void **, void *, unsigned long long), instantiate, "cuGraphInstantiateWithFlags");
    GET((void *, void *), launch, "cuGraphLaunch");
    GET((void *), destroy, "cuGraphExecDestroy");
    GET((int), trim, "cuDeviceGraphMemTrim");
    info = dlsym(library, "cuMemGetInfo_v2");
    void *(*own)(void *, const char *) = dlsym(RTLD_DEFAULT, "bursar_enforce_function");
    true_info = own(info, "cuMemGetInfo_v2");
    CHECK((void *)info != (void *)true_info);
    void *context, *found;
    int status;
    OK(init(0));
    OK(retain(&context, 0));

    // What is not there is absent, and what is not known is untouched.
    dlerror();
    CHECK(!dlsym(library, "cuMemCreate") && dlerror());
    found = library;
    CHECK(by_name("cuMemCreate", &found, 12020, 0, &status) == 500 && !found && status == 1);
    OK(by_name("cuSomethingElse", &found, 12020, 0, &status));
    CHECK(((Result(*)(void))found)() == 4711);
    CHECK(found == dlsym(library, "cuSomethingElse"));
    OK(by_name("cuMemAlloc", &found, 14000, 0, &status));
    CHECK(found == dlsym(library, "odd_newer"));
    OK(by_name("cuMemAlloc", &found, 12020, 0, &status));
    CHECK(found == (void *)allocate);
    OK(by_name("cuMemAlloc", &found, 2000, 0, &status));
    CHECK(found == (void *)allocate_short);
    void *versioned = dlvsym(library, "cuMemAlloc_v2", "ODD_1");
    CHECK(versioned == (void *)allocate);
    CHECK(!dlvsym(library, "cuMemAlloc_v2", "ODD_2"));

    // Small allocations share pages.
    Pointer small[4000], more, rows;
    size_t pitch;
    for (int at = 0; at < 4000; at++) {
        OK(allocate(&small[at], 100 + at * 7 % 5000));
        if (at % 50 == 0)
            SAME();
    }
    SAME();
    CHECK(used(info) < 8 * PAGE);
    OK(allocate(&more, 3 * PAGE + 1));
    SAME();
    OK(allocate_rows(&rows, &pitch, 1000, 3000, 4));
    SAME();
    unsigned narrow;
    OK(allocate_short(&narrow, PAGE));
    SAME();
    OK(release_short(narrow));
    SAME();
    for (int at = 0; at < 4000; at++) {
        OK(release(small[(at * 1789) % 4000]));
        if (at % 50 == 0)
            SAME();
    }
    OK(release(more));
    OK(release(rows));
    SAME();
    CHECK(used(info) == 0);
    CHECK(allocate(&more, (64 << 20) + 1) == OUT_OF_MEMORY);
    OK(allocate(&more, 64 << 20));
    CHECK(allocate(&rows, 1) == OUT_OF_MEMORY);
    OK(release(more));
    SAME();

    // Graphs take their memory when they run.
    void *graph, *large;
    OK(instantiate(&graph, (void *)(uintptr_t)(30 << 20), 0));
    SAME();
    OK(launch(graph, NULL));
    SAME();
    CHECK(used(info) == 30 << 20);
    OK(launch(graph, NULL));
    SAME();
    OK(allocate(&more, 34 << 20));
    CHECK(instantiate(&large, (void *)(uintptr_t)(64 << 20), 0) == OUT_OF_MEMORY);
    OK(launch(graph, NULL));
    SAME();
    OK(release(more));
    OK(destroy(graph));
    SAME();
    OK(trim(0));
    SAME();
    CHECK(used(info) == 0);

    // A capture is left alone: what is asked of the stream becomes a part of the graph, and questions of ours spoil nothing.
    GET((Pointer *, size_t, void *), allocate_async, "cuMemAllocAsync");
    GET((Pointer, void *), release_async, "cuMemFreeAsync");
    GET((void *), synchronize, "cuStreamSynchronize");
    GET((int), capture, "odd_capture");
    OK(allocate_async(&more, 1000, NULL));
    SAME();
    CHECK(used(info) == 32 << 20);
    capture(1);
    OK(allocate_async(&rows, 100 << 20, (void *)1));
    OK(release_async(rows, (void *)1));
    OK(allocate_async(&rows, 1000, NULL));
    CHECK(allocate_async(&rows, 64 << 20, NULL) == OUT_OF_MEMORY);
    OK(capture(0));
    SAME();
    CHECK(used(info) == 32 << 20);
    OK(release_async(more, NULL));
    OK(synchronize(NULL));
    SAME();
    CHECK(used(info) == 0);
    puts("done");
}

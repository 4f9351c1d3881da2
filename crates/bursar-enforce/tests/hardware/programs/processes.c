// Programs that fork, execute others, hold memory until they are killed, and wait for memory that others hold.
#include "driver.h"
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

static struct Driver found;
static const struct Driver *driver = &found;

static void start(void) {
    size_t total = 0;
    found = find("dlsym");
    open_device(driver);
    DO(driver->total_memory(&total, 0));
    if (!getenv("TRIAL_BARE"))
        is_share(total);
}

// Waits for a child for so many seconds, and kills it then. Returns its status, and -1 for one that was killed here.
static int wait_for(pid_t child, double patience) {
    int status = -1;
    for (double until = seconds() + patience; seconds() < until; usleep(2000))
        if (waitpid(child, &status, WNOHANG) == child)
            return status;
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return -1;
}

static pid_t execute(const char *self, const char *what, const char *argument) {
    pid_t child = fork();
    if (child == 0) {
        execl(self, self, what, argument, (char *)NULL);
        _exit(127);
    }
    return child;
}

// A context and nothing else.
static void context(void) {
    start();
    mark("context");
}

// A child without exec is told by status, whichever call it makes, and its parent goes on.
static void forks(void) {
    start();
    CUdeviceptr kept, more = 0;
    DO(driver->allocate(&kept, 512 * (size_t)PAGE));
    size_t before = left_of(driver);
    pid_t child = fork();
    if (child == 0) {
        CUmemAllocationProp kind = on_device();
        CUmemGenericAllocationHandle handle = 0;
        CUresult linear = driver->allocate(&more, PAGE), pages = driver->create(&handle, PAGE, &kind, 0);
        CUresult ordered = driver->allocate_async(&more, PAGE, NULL);
        check(linear == CUDA_ERROR_NOT_INITIALIZED, "cuMemAlloc in a forked child", "%d", (int)linear);
        check(pages == CUDA_ERROR_NOT_INITIALIZED, "cuMemCreate in a forked child", "%d", (int)pages);
        check(ordered == CUDA_ERROR_NOT_INITIALIZED, "cuMemAllocAsync in a forked child", "%d", (int)ordered);
        _exit(failures != 0);
    }
    int status = wait_for(child, 20);
    check(status == 0, "the forked child ends well", "%d", status);
    mark("forked");
    check(left_of(driver) + GROWN_MAX >= before, "the parent's charge is as it was", "%zu, %zu before", left_of(driver), before);
    DO(driver->allocate(&more, 512 * (size_t)PAGE));
    DO(driver->free_linear(more));
    DO(driver->free_linear(kept));
}

// Children that are executed have the same share: what one takes the other does not have.
static void executes(const char *self) {
    start();
    CUdeviceptr kept;
    size_t all = left_of(driver) / PAGE * PAGE;
    DO(driver->allocate(&kept, all / 2));
    size_t before = left_of(driver);
    pid_t child = execute(self, "executed", NULL);
    int status = wait_for(child, 40);
    check(status == 0, "the executed child ends well", "%d", status);
    check(left_of(driver) + GROWN_MAX >= before, "what the child took is back", "%zu, %zu before", left_of(driver), before);
    DO(driver->free_linear(kept));
}

static void executed(void) {
    start();
    size_t there = left_of(driver);
    check(there < share_bytes() / 2, "of which its parent's part is gone", "%zu left", there);
    // Each process keeps a little of the share at hand, which comes back when another needs it: so it is filled page by page.
    CUdeviceptr taken;
    DO(driver->allocate(&taken, (there / PAGE - 8) * PAGE));
    CUresult status = CUDA_SUCCESS;
    int pages = 0;
    while (pages < 1000 && (status = driver->allocate(&taken, PAGE)) == CUDA_SUCCESS)
        pages++;
    check(status == CUDA_ERROR_OUT_OF_MEMORY, "parent and child together are refused", "%d after %d pages", (int)status, pages);
    struct Answer now = mark("both");
    check(now.charged + PAGE > (long long)share_bytes(), "and not before the share is full", "%lld of %zu", now.charged, share_bytes());
}

// Takes so many bytes of linear memory or of pages that are mapped, and waits to be killed.
static void hold(const char *argument) {
    size_t bytes = strtoull(argument, NULL, 10) / PAGE * PAGE;
    start();
    CUmemAllocationProp kind = on_device();
    CUmemGenericAllocationHandle handle;
    CUdeviceptr place, linear;
    size_t mapped = bytes / 2 / PAGE * PAGE;
    CUmemAccessDesc access;
    memset(&access, 0, sizeof access);
    access.location = kind.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    DO(driver->create(&handle, mapped, &kind, 0));
    DO(driver->reserve(&place, mapped, 0, 0, 0));
    DO(driver->map(place, mapped, 0, handle, 0));
    DO(driver->set_access(place, mapped, &access, 1));
    DO(driver->release(handle));
    DO(driver->allocate(&linear, bytes - mapped));
    mark("holding");
    for (double until = seconds() + PATIENCE_S; seconds() < until;)
        sleep(1);
    check(0, "somebody kills the holder", "nobody did");
    exit(end());
}

// Two children of one share: one is killed while it holds most of it, and the other has it soon.
static void inherits(const char *self) {
    char bytes[32];
    snprintf(bytes, sizeof bytes, "%zu", share_bytes() / 10 * 7);
    start();
    size_t wanted = share_bytes() / 10 * 6;
    pid_t child = execute(self, "hold", bytes);
    double until = seconds() + 30;
    while (seconds() < until && left_of(driver) + share_bytes() / 10 * 7 > share_bytes())
        usleep(2000);
    // The last of it may still be on its way.
    usleep(300000);
    CUdeviceptr taken = 0;
    CUresult status = driver->allocate(&taken, wanted);
    check(status == CUDA_ERROR_OUT_OF_MEMORY, "while the other holds it: refused", "%d", (int)status);
    kill(child, SIGKILL);
    double killed = seconds();
    while ((status = driver->allocate(&taken, wanted)) == CUDA_ERROR_OUT_OF_MEMORY && seconds() < killed + 10)
        usleep(2000);
    double took = seconds() - killed;
    check(status == CUDA_SUCCESS && took <= 5, "the other has it within 5 s", "%.3f s, status %d", took, (int)status);
    see("after the kill", "%.3f s", took);
    waitpid(child, NULL, 0);
    mark("inherited");
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "", *argument = count > 2 ? words[2] : "0";
    int is_child = !strcmp(what, "executed") || (!strcmp(what, "hold") && getenv("TRIAL_CHILD"));
    if (getenv("TRIAL_BARE"))
        mark("start");
    else if (!is_child)
        begin();
    setenv("TRIAL_CHILD", "1", 1);
    if (!strcmp(what, "forks")) forks();
    else if (!strcmp(what, "context")) context();
    else if (!strcmp(what, "executes")) executes(words[0]);
    else if (!strcmp(what, "executed")) executed();
    else if (!strcmp(what, "hold")) hold(argument);
    else if (!strcmp(what, "inherits")) inherits(words[0]);
    else check(0, "the program is known", "%s", what);
    return end();
}

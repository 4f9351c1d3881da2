// What the library costs a call: the driver's own function against what the program was given for it, in alternating batches of
// one process, so that both meet the same machine at the same moment.
//
// Without the library both are the same function, and the difference shows how much the machine varies by itself.
#include "driver.h"
#include <elf.h>
#include <link.h>

enum { BATCH = 50, BATCHES_MAX = 400 };

// Returns a symbol of the driver as its file has it, which is the driver's own function whoever overrides `dlsym`.
static void *own_symbol(const char *name) {
    struct link_map *map = NULL;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) || !map)
        return NULL;
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const uint32_t *table = NULL, *old_table = NULL;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB)
            symbols = (const ElfW(Sym) *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_STRTAB)
            strings = (const char *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_GNU_HASH)
            table = (const uint32_t *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_HASH)
            old_table = (const uint32_t *)entry->d_un.d_ptr;
    }
    if (!symbols || !strings)
        return NULL;
    if (!table) {
        for (uint32_t index = 0; old_table && index < old_table[1]; index++)
            if (symbols[index].st_value && !strcmp(strings + symbols[index].st_name, name))
                return (char *)map->l_addr + symbols[index].st_value;
        return NULL;
    }
    uint32_t hash = 5381;
    for (const char *at = name; *at; at++)
        hash = hash * 33 + (unsigned char)*at;
    uint32_t bucket_count = table[0], first = table[1], bloom_count = table[2];
    const uint32_t *buckets = table + 4 + bloom_count * (sizeof(ElfW(Addr)) / 4), *chains = buckets + bucket_count;
    for (uint32_t index = buckets[hash % bucket_count]; index >= first; index++) {
        uint32_t found = chains[index - first];
        if ((found | 1) == (hash | 1) && !strcmp(strings + symbols[index].st_name, name) && symbols[index].st_value)
            return (char *)map->l_addr + symbols[index].st_value;
        if (found & 1)
            break;
    }
    return NULL;
}

static int compare(const void *one, const void *other) {
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

static double median(double *values, int count) {
    qsort(values, count, sizeof *values, compare);
    return values[count / 2];
}

// Two ways to one function, and the nanoseconds a call of each batch: [0] the driver's own, [1] the program's.
struct Timing {
    const char *name;
    double nanoseconds[2][BATCHES_MAX];
};

static void report(struct Timing *timing, int batches, const char *kind) {
    double own = median(timing->nanoseconds[0], batches), given = median(timing->nanoseconds[1], batches);
    double low = timing->nanoseconds[0][batches / 4], high = timing->nanoseconds[0][batches * 3 / 4];
    printf("{\"call\": \"%s\", \"kind\": \"%s\", \"own_ns\": %.1f, \"given_ns\": %.1f, \"added_ns\": %.1f, \"own_quartiles_apart_ns\": %.1f, \"calls\": %d}\n",
           timing->name, kind, own, given, given - own, high - low, batches * BATCH);
}

static double elapsed_ns(double since) { return (seconds() - since) * 1e9 / BATCH; }

static struct Driver ways[2];
static CUstream stream;
static CUdeviceptr blocks[BATCH];

static void linear(int batches) {
    static struct Timing allocating = { .name = "cuMemAlloc, 2 MiB" }, freeing = { .name = "cuMemFree, 2 MiB" };
    for (int batch = 0; batch < batches; batch++) {
        for (int turn = 0; turn < 2; turn++) {
            int way = (batch + turn) % 2;
            double since = seconds();
            for (int i = 0; i < BATCH; i++)
                DO(ways[way].allocate(&blocks[i], PAGE));
            allocating.nanoseconds[way][batch] = elapsed_ns(since);
            since = seconds();
            for (int i = 0; i < BATCH; i++)
                DO(ways[way].free_linear(blocks[i]));
            freeing.nanoseconds[way][batch] = elapsed_ns(since);
        }
    }
    report(&allocating, batches, "allocating");
    report(&freeing, batches, "allocating");
}

static void ordered(int batches) {
    static struct Timing allocating = { .name = "cuMemAllocAsync, 1 MiB" }, freeing = { .name = "cuMemFreeAsync, 1 MiB" };
    for (int batch = 0; batch < batches; batch++) {
        for (int turn = 0; turn < 2; turn++) {
            int way = (batch + turn) % 2;
            double since = seconds();
            for (int i = 0; i < BATCH; i++)
                DO(ways[way].allocate_async(&blocks[i], 1 << 20, stream));
            allocating.nanoseconds[way][batch] = elapsed_ns(since);
            since = seconds();
            for (int i = 0; i < BATCH; i++)
                DO(ways[way].free_async(blocks[i], stream));
            freeing.nanoseconds[way][batch] = elapsed_ns(since);
            DO(ways[0].stream_synchronize(stream));
        }
    }
    report(&allocating, batches, "allocating");
    report(&freeing, batches, "allocating");
}

static void others(int batches) {
    static struct Timing querying = { .name = "cuStreamQuery" }, setting = { .name = "cuMemsetD8Async, 4 KiB" };
    static struct Timing waiting = { .name = "cuStreamSynchronize" };
    CUdeviceptr block;
    DO(ways[1].allocate(&block, PAGE));
    for (int batch = 0; batch < batches; batch++) {
        for (int turn = 0; turn < 2; turn++) {
            int way = (batch + turn) % 2;
            double since = seconds();
            for (int i = 0; i < BATCH; i++)
                ways[way].stream_query(stream);
            querying.nanoseconds[way][batch] = elapsed_ns(since);
            since = seconds();
            for (int i = 0; i < BATCH; i++)
                ways[way].set_bytes_async(block, 1, 4096, stream);
            setting.nanoseconds[way][batch] = elapsed_ns(since);
            DO(ways[0].stream_synchronize(stream));
            since = seconds();
            for (int i = 0; i < BATCH; i++)
                ways[way].stream_synchronize(stream);
            waiting.nanoseconds[way][batch] = elapsed_ns(since);
        }
    }
    DO(ways[1].free_linear(block));
    report(&querying, batches, "other");
    report(&setting, batches, "other");
    report(&waiting, batches, "waiting");
}

static const char *object_of(void *function) {
    Dl_info info;
    return dladdr(function, &info) && info.dli_fname ? info.dli_fname : "nowhere";
}

int main(int count, char **words) {
    int batches = count > 1 ? atoi(words[1]) : 40;
    batches = batches < 1 ? 1 : batches > BATCHES_MAX ? BATCHES_MAX : batches;
    if (getenv("TRIAL_BARE") == NULL)
        begin();
    ways[0] = ways[1] = find("dlsym");
    const char *missing = NULL;
#define OWN(name, symbol, base, parameters) \
    { \
        void *own = own_symbol(symbol); \
        memcpy(&ways[0].name, &own, sizeof own); \
        missing = own ? missing : symbol; \
    }
    FUNCTIONS(OWN)
    if (!check(!missing, "the driver's own functions are found", "%s", missing ? missing : "all"))
        return end();
    if (getenv("TRIAL_BARE") == NULL) {
        check(ways[0].allocate != ways[1].allocate, "cuMemAlloc is wrapped", "%s", object_of((void *)ways[1].allocate));
        check(ways[0].stream_query == ways[1].stream_query, "cuStreamQuery is the driver's own", "%s", object_of((void *)ways[1].stream_query));
        check(ways[0].set_bytes_async == ways[1].set_bytes_async, "cuMemsetD8Async is the driver's own", "%s", object_of((void *)ways[1].set_bytes_async));
    }
    open_device(&ways[1]);
    DO(ways[1].stream_create(&stream, CU_STREAM_NON_BLOCKING));
    CUmemoryPool pool;
    unsigned long long all = ~0ull, none = 0;
    DO(ways[1].default_pool(&pool, 0));
    DO(ways[1].set_pool(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    linear(batches);
    ordered(batches);
    others(batches);
    DO(ways[1].set_pool(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &none));
    DO(ways[1].trim_pool(pool, 0));
    fflush(stdout);
    return end();
}

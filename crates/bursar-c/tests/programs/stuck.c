/* Requests for reservations while a stopped process has the lock of the ledger: none waits for longer than it was told to. */
#include "device.h"
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const uint64_t MIB = (uint64_t)1 << 20;
/* Where the lock of a ledger is in its file, and the word by which the first process of it has the lock. */
static const off_t LOCK_AT = 128;
static const uint64_t TAKEN = (((uint64_t)1 << 38) | 1) * 227;
/* Longer than anything takes that waits for nobody, and shorter than the time after which a stuck lock is an error. */
static const double SOON = 3.0;

static bursar_cancellation cancellation;

/* Opens the ledger, says so and stays for as long as its parent does. */
static void stays(int ready) {
    bursar_reservation reservation;
    REQUIRE(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    REQUIRE(bursar_reserve(open_device(), MIB, NULL, &reservation) == BURSAR_OK);
    REQUIRE(write(ready, "x", 1) == 1);
    for (;;)
        pause();
}

/* Opens the file of the only ledger. */
static int open_ledger(void) {
    const char *folder = getenv("BURSAR_LEDGER_DIR");
    DIR *listed = opendir(folder);
    struct dirent *entry;
    int file = -1;
    REQUIRE(listed != NULL);
    while ((entry = readdir(listed)) != NULL) {
        const char *ending = strrchr(entry->d_name, '.');
        if (ending != NULL && strcmp(ending, ".ledger") == 0)
            file = openat(dirfd(listed), entry->d_name, O_RDWR | O_CLOEXEC);
    }
    REQUIRE(closedir(listed) == 0 && file >= 0);
    return file;
}

static double now(void) {
    struct timespec time;
    REQUIRE(clock_gettime(CLOCK_MONOTONIC, &time) == 0);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void *cancels(void *unused) {
    usleep(100000);
    REQUIRE(bursar_cancel(cancellation) == BURSAR_OK);
    return unused;
}

/* Every way to ask ends soon, and says what was in the way. */
static void nothing_waits(bursar_device device) {
    bursar_reserve_options options = {.struct_size = sizeof(options)};
    bursar_error error = {.struct_size = sizeof(error)};
    bursar_reservation reservation;
    pthread_t thread;
    double began = now();

    REQUIRE(bursar_reserve(device, MIB, NULL, &reservation) == BURSAR_LEDGER && reservation.id == 0);
    REQUIRE(bursar_last_error(&error) == BURSAR_OK && error.is_capacity == 0);
    REQUIRE(strstr(error.message, "has had the lock") != NULL);
    options.timeout_ms = 50;
    REQUIRE(bursar_reserve(device, MIB, &options, &reservation) == BURSAR_TIMED_OUT && reservation.id == 0);
    REQUIRE(bursar_last_error(&error) == BURSAR_OK && error.is_capacity == 0);
    REQUIRE(strstr(error.message, "50 ms") != NULL && strstr(error.message, "has had the lock") != NULL);

    REQUIRE(bursar_cancellation_create(&cancellation) == BURSAR_OK);
    options.timeout_ms = BURSAR_FOREVER;
    options.cancellation = cancellation;
    REQUIRE(pthread_create(&thread, NULL, cancels, NULL) == 0);
    REQUIRE(bursar_reserve(device, MIB, &options, &reservation) == BURSAR_CANCELLED && reservation.id == 0);
    REQUIRE(pthread_join(thread, NULL) == 0 && bursar_cancellation_close(cancellation) == BURSAR_OK);
    REQUIRE(now() - began < SOON);
}

/* Readings need no lock: they say what was so before the process was stopped. */
static void readings_wait_for_nobody(bursar_device device, bursar_reservation reservation) {
    bursar_reservation_reading reading = {.struct_size = sizeof(reading)};
    uint64_t available;
    double began = now();
    REQUIRE(bursar_available(device, &available) == BURSAR_OK && available == 1019 * MIB);
    REQUIRE(bursar_reservation_read(reservation, &reading) == BURSAR_OK);
    REQUIRE(reading.bytes == 4 * MIB && reading.held == MIB && reading.undrawn == 3 * MIB);
    REQUIRE(now() - began < SOON);
}

/* Reserves 4 MiB and takes one of them. */
static bursar_reservation takes_memory(bursar_device device) {
    bursar_stack_options options = {.struct_size = sizeof(options)};
    bursar_reservation reservation;
    bursar_stack stack;
    bursar_stream stream;
    bursar_block block;
    REQUIRE(bursar_reserve(device, 4 * MIB, NULL, &reservation) == BURSAR_OK);
    options.kind = BURSAR_STACK_DIRECT;
    options.account = BURSAR_ACCOUNT_RESERVATION;
    options.reservation = reservation;
    REQUIRE(bursar_stack_open(device, &options, &stack) == BURSAR_OK);
    REQUIRE(bursar_stream_create(device, 0, &stream) == BURSAR_OK);
    REQUIRE(bursar_allocate(stack, MIB, 0, stream, BURSAR_UNTAGGED, &block) == BURSAR_OK);
    return reservation;
}

int main(void) {
    bursar_device device;
    bursar_reservation reservation, taken;
    uint64_t lock, available;
    pid_t holder;
    int ready[2], ledger, turn;
    char byte;

    REQUIRE(pipe(ready) == 0);
    holder = fork();
    REQUIRE(holder >= 0);
    if (holder == 0)
        stays(ready[1]);
    /* The end of the pipe is closed if the holder failed. */
    REQUIRE(close(ready[1]) == 0 && read(ready[0], &byte, 1) == 1);
    REQUIRE(kill(holder, SIGSTOP) == 0 && waitpid(holder, NULL, WUNTRACED) == holder);

    ledger = open_ledger();
    device = open_device();
    /* First while this process has yet to open the ledger, then with it open. */
    for (turn = 0; turn < 2; ++turn) {
        REQUIRE(pread(ledger, &lock, sizeof(lock), LOCK_AT) == sizeof(lock));
        REQUIRE(pwrite(ledger, &TAKEN, sizeof(TAKEN), LOCK_AT) == sizeof(TAKEN));
        nothing_waits(device);
        REQUIRE(pwrite(ledger, &lock, sizeof(lock), LOCK_AT) == sizeof(lock));
        REQUIRE(bursar_available(device, &available) == BURSAR_OK && available == 1023 * MIB);
        REQUIRE(bursar_reserve(device, available, NULL, &reservation) == BURSAR_OK);
        REQUIRE(bursar_reservation_close(reservation) == BURSAR_OK);
    }
    taken = takes_memory(device);
    REQUIRE(pread(ledger, &lock, sizeof(lock), LOCK_AT) == sizeof(lock));
    REQUIRE(pwrite(ledger, &TAKEN, sizeof(TAKEN), LOCK_AT) == sizeof(TAKEN));
    readings_wait_for_nobody(device, taken);
    REQUIRE(pwrite(ledger, &lock, sizeof(lock), LOCK_AT) == sizeof(lock));
    REQUIRE(kill(holder, SIGKILL) == 0 && waitpid(holder, NULL, 0) == holder);
    REQUIRE(bursar_device_close(device) == BURSAR_OK);
    printf("nothing waited\n");
    return 0;
}

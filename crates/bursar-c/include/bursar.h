/*
 * Bursar: device memory, budgets and reservations for programs that share GPUs.
 *
 * Every call returns a bursar_status; bursar_last_error tells the rest of a failure. Handles are small structures that are
 * passed by value, and {0} is null. A handle that is null, was closed or freed, or is of another kind is
 * BURSAR_INVALID_HANDLE, never undefined behaviour. Structures begin with their size, which the caller sets:
 *
 *     bursar_stack_options options = { .struct_size = sizeof(options) };
 *
 * Every call may be made from any thread at any time. Calls that close something wait for the calls of other threads that
 * are running, so a handle may be closed while others use it: they finish, or are told that it is closed. Nothing starts by
 * itself: loading the library opens no device and starts no thread.
 *
 * In a process that is forked off one that has opened a driver, every call that returns a bursar_status but those about the
 * last error is BURSAR_FORKED and does nothing, whatever other threads were doing. What the other process has stays its own.
 *
 * This file is written from the code by `cargo xtask header`.
 */


#ifndef BURSAR_H
#define BURSAR_H

#include <stddef.h>
#include <stdint.h>

// The number of this interface. It changes where a program that was compiled with an earlier header would no longer work.
#define BURSAR_INTERFACE 0

// The driver that `BURSAR_DRIVER` names (`cuda` or `sim`); without it CUDA where that works, and simulated devices otherwise.
#define BURSAR_DRIVER_DEFAULT 0

// CUDA, or a failure that says why it cannot be used.
#define BURSAR_DRIVER_CUDA 1

// Simulated devices.
#define BURSAR_DRIVER_SIMULATED 2

// The tag of an allocation that nobody named.
#define BURSAR_UNTAGGED 0

// A time that never passes.
#define BURSAR_FOREVER UINT64_MAX

// A pool of frames that are mapped where they are needed.
#define BURSAR_STACK_POOL 0

// The driver's own stream-ordered pool.
#define BURSAR_STACK_ASYNC 1

// One allocation of the driver for each block.
#define BURSAR_STACK_DIRECT 2

// No account: only the limit of the stack itself counts, if it has one.
#define BURSAR_ACCOUNT_NONE 0

// The share that `bursar run` set aside for this process or, if there is none, its account with the device's ledger.
#define BURSAR_ACCOUNT_LEDGER 1

// A reservation of this process.
#define BURSAR_ACCOUNT_RESERVATION 2

// The memory is in use as usual.
#define BURSAR_SLEEP_AWAKE 0

// A part of the memory is asleep.
#define BURSAR_SLEEP_PARTLY 1

// The memory is falling asleep or waking.
#define BURSAR_SLEEP_MOVING 2

// The memory is asleep.
#define BURSAR_SLEEP_ASLEEP 3

// Work that reads a block.
#define BURSAR_READ 0

// Work that writes a block, and may read it.
#define BURSAR_WRITE 1

// The outcome of a call. `BURSAR_OK` is zero; every other value is a failure, of which `bursar_last_error` tells the rest.
enum bursar_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // The call did what it says.
  BURSAR_OK = 0,
  // A pointer is null, a structure has another size, a text is no UTF-8, or a number makes no sense.
  BURSAR_INVALID_ARGUMENT = 1,
  // A handle is null, of another kind, closed or freed already, or was never given out.
  BURSAR_INVALID_HANDLE = 2,
  // A limit, an account or a reservation has no room for the request.
  BURSAR_OUT_OF_BUDGET = 3,
  // The device has no room for the request.
  BURSAR_OUT_OF_MEMORY = 4,
  // Memory that the caller is guaranteed is lent to others, who did not give it back in time.
  BURSAR_WITHHELD = 5,
  // A reservation was not granted before its time was over.
  BURSAR_TIMED_OUT = 6,
  // A reservation was given up by its cancellation.
  BURSAR_CANCELLED = 7,
  // The stream cannot be used for this: it is of another device, has ended, or is being captured into a graph.
  BURSAR_INVALID_STREAM = 8,
  // Every stream that there may be is in use.
  BURSAR_TOO_MANY_STREAMS = 9,
  // The memory still has blocks, so it stays open.
  BURSAR_STILL_HELD = 10,
  // The driver that was asked for cannot be used.
  BURSAR_NO_DRIVER = 11,
  // There is no such device, or it cannot be used.
  BURSAR_NO_DEVICE = 12,
  // The device or the memory cannot do this, or was not asked to.
  BURSAR_UNSUPPORTED = 13,
  // The ledger cannot be used.
  BURSAR_LEDGER = 14,
  // This process was forked off one that had opened a driver. Only what it becomes by `exec` can use the library.
  BURSAR_FORKED = 15,
  // A call of the driver failed; `driver_code` has its number.
  BURSAR_DRIVER_FAILED = 16,
  // A defect of this library: the call panicked and may be half done.
  BURSAR_PANIC = 17,
  // A failure that has no status of its own in this version.
  BURSAR_OTHER = 18,
  // The memory sleeps, or is falling asleep or waking.
  BURSAR_ASLEEP = 19,
  // Work that had to run first was still running when the time was over.
  BURSAR_STILL_IN_USE = 20,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum bursar_status bursar_status;
#else
typedef int32_t bursar_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The last failure of a thread, in numbers and as one line of text. Numbers that a failure does not have are zero.
typedef struct bursar_error {
  // The size of this structure, set by the caller: `sizeof(bursar_error)`.
  size_t struct_size;
  // The status that the call returned.
  bursar_status status;
  // The driver's own number of its failure, as `CUresult` has it.
  int32_t driver_code;
  // The bytes that were asked for, the number that was refused, or the bytes that are still held.
  uint64_t requested;
  // The bytes that were left.
  uint64_t available;
  // The limit that refused: in bytes, or the most that there may be.
  uint64_t limit;
  // One if the request failed for want of memory, so that it could succeed once some is freed; zero otherwise.
  uint32_t is_capacity;
  // One if the driver's failure is for good: every later call of the device fails too.
  uint32_t is_sticky;
  // The failure in one line, cut where it is longer.
  char message[512];
} bursar_error;

// The choice of a driver. Zeroes but for the size are the defaults, and so is a null pointer to it.
typedef struct bursar_driver_options {
  // The size of this structure: `sizeof(bursar_driver_options)`.
  size_t struct_size;
  // One of `BURSAR_DRIVER_*`.
  uint32_t choice;
  // One to look at devices and reserve their memory only: no context is made, which takes memory of each device, and there are
  // no stacks and no streams, on simulated devices neither. Zero otherwise.
  uint32_t observes_only;
  // The simulated devices, such as "2x80GiB", or "2x80GiB@name" for devices that processes share. Null: those that
  // `BURSAR_SIM_DEVICES` describes, or two.
  const char *simulated_devices;
} bursar_driver_options;

// A driver; `{0}` is null.
typedef struct bursar_driver {
  // The number of the handle.
  uint64_t id;
} bursar_driver;

// A driver that was opened.
typedef struct bursar_driver_facts {
  // The size of this structure, set by the caller: `sizeof(bursar_driver_facts)`.
  size_t struct_size;
  // The number of devices.
  uint32_t device_count;
  // One if the devices are simulated, zero if they are real.
  uint32_t is_simulated;
  // The name and the version of the driver.
  char name[128];
  // The reason that the devices are simulated, if nobody asked for that; empty otherwise.
  char instead_of_cuda[256];
} bursar_driver_facts;

// The facts about a device that do not change.
typedef struct bursar_device_facts {
  // The size of this structure, set by the caller: `sizeof(bursar_device_facts)`.
  size_t struct_size;
  // The size of its memory.
  uint64_t total;
  // The size that pages come in, where physical memory can be mapped; zero otherwise.
  uint64_t page_granularity;
  // One if memory can be allocated and freed in stream order by the driver.
  uint32_t is_stream_ordered;
  // One if other processes can open the same device, so that they share its ledger.
  uint32_t is_shared;
  // The NUMA node that it is near to; -1 where none is reported.
  int32_t numa_node;
  // The priority of its most urgent streams; lower numbers are more urgent.
  int32_t greatest_priority;
  // The priority of its least urgent streams.
  int32_t least_priority;
  // Zero.
  uint32_t reserved;
  // The identity of the physical device, the same in every process.
  uint8_t uuid[16];
  // The address on the PCI bus, such as "0000:4e:00.0"; empty where it has none.
  char pci[32];
  // The product's name.
  char name[128];
} bursar_device_facts;

// The memory of a device at one moment, whoever holds it.
typedef struct bursar_device_memory {
  // The size of this structure, set by the caller: `sizeof(bursar_device_memory)`.
  size_t struct_size;
  // The bytes that the driver could still allocate.
  uint64_t free;
  // All memory of the device.
  uint64_t total;
} bursar_device_memory;

// The options of a device. Zeroes but for the size are the defaults, and so is a null pointer to it.
typedef struct bursar_device_options {
  // The size of this structure: `sizeof(bursar_device_options)`.
  size_t struct_size;
  // One to count nothing, which saves some twenty instructions an allocation; refusals then name no holders. Zero
  // otherwise.
  uint32_t without_statistics;
  // Zero.
  uint32_t reserved;
} bursar_device_options;

// A device that is open; `{0}` is null.
typedef struct bursar_device {
  // The number of the handle.
  uint64_t id;
} bursar_device;

// Counts of the memory that was granted on a device, or of one tag.
typedef struct bursar_statistics {
  // The size of this structure, set by the caller: `sizeof(bursar_statistics)`.
  size_t struct_size;
  // The bytes that are granted now.
  uint64_t current_bytes;
  // The blocks that are granted now.
  uint64_t current_blocks;
  // The most bytes that were granted at a time: never less than the truth, and at most 1 MiB for each thread more.
  uint64_t peak_bytes;
  // The most blocks that were granted at a time, likewise.
  uint64_t peak_blocks;
  // All bytes that were ever granted.
  uint64_t total_bytes;
  // All blocks that were ever granted.
  uint64_t total_blocks;
  // The requests that a limit refused; zero for a tag.
  uint64_t refused;
  // The requests that failed for another reason; zero for a tag.
  uint64_t failed;
} bursar_statistics;

// A way to give up reservations that wait; `{0}` is null.
typedef struct bursar_cancellation {
  // The number of the handle.
  uint64_t id;
} bursar_cancellation;

// The options of a reservation. Zeroes but for the size are the defaults, and so is a null pointer to it: at once or not at all.
typedef struct bursar_reserve_options {
  // The size of this structure: `sizeof(bursar_reserve_options)`.
  size_t struct_size;
  // The longest time to wait for its turn, in milliseconds: zero to wait for nothing, `BURSAR_FOREVER` without an end.
  uint64_t timeout_ms;
  // The cancellation that gives it up while it waits; null for none.
  struct bursar_cancellation cancellation;
  // The label that `bursar ledger show` shows; null for none. Of a longer one the first 49 bytes are kept.
  const char *label;
  // The tenant that it is of, in up to 48 bytes; null for the one without a name.
  const char *tenant;
  // The priority where it waits, from 1 to 255: a higher one is served first. Zero for the usual one, which is 128.
  uint32_t priority;
  // The part of what all may have together that stays free, in millionths: up to 1,000,000.
  uint32_t keep_free_millionths;
} bursar_reserve_options;

// Memory that was set aside; `{0}` is null.
typedef struct bursar_reservation {
  // The number of the handle.
  uint64_t id;
} bursar_reservation;

// A reservation at one moment.
typedef struct bursar_reservation_reading {
  // The size of this structure, set by the caller: `sizeof(bursar_reservation_reading)`.
  size_t struct_size;
  // The bytes that were set aside.
  uint64_t bytes;
  // The bytes that can still be charged.
  uint64_t undrawn;
  // The bytes that stacks of this process hold of it.
  uint64_t held;
} bursar_reservation_reading;

// A stream of a device; `{0}` is null.
typedef struct bursar_stream {
  // The number of the handle.
  uint64_t id;
} bursar_stream;

// The options of a stack. Zeroes but for the size are the defaults, and so is a null pointer to it: a pool without limit.
typedef struct bursar_stack_options {
  // The size of this structure: `sizeof(bursar_stack_options)`.
  size_t struct_size;
  // One of `BURSAR_STACK_*`.
  uint32_t kind;
  // One of `BURSAR_ACCOUNT_*`: the account that is charged with what the stack holds of the device.
  uint32_t account;
  // The most bytes that the stack may hold of the device; zero for no limit.
  uint64_t limit;
  // The reservation, for `BURSAR_ACCOUNT_RESERVATION`; null otherwise. Its handle may be closed while the stack is open.
  struct bursar_reservation reservation;
  // The tenant of the ledger, for `BURSAR_ACCOUNT_LEDGER`, in up to 48 bytes; null for the one without a name.
  const char *tenant;
  // The longest time that a pool waits for frees that have not run before it refuses a request, in milliseconds; zero for
  // one second.
  uint32_t patience_ms;
  // One to have a stream wait for another's work before the pool grows, which holds less. Zero otherwise.
  uint32_t wait_before_growing;
} bursar_stack_options;

// The memory of a device; `{0}` is null.
typedef struct bursar_stack {
  // The number of the handle.
  uint64_t id;
} bursar_stack;

// The memory that a stack holds at one moment. A stack without a pool caches nothing that is known here.
typedef struct bursar_stack_reading {
  // The size of this structure, set by the caller: `sizeof(bursar_stack_reading)`.
  size_t struct_size;
  // The bytes that blocks have, and those that were freed but may still be in use by work that has not run.
  uint64_t outstanding;
  // The bytes that the stack holds of the device.
  uint64_t held;
  // The bytes of it that no block has.
  uint64_t cached;
  // The bytes of those that are not known to be done with.
  uint64_t pending;
  // The most bytes that lie free in one piece.
  uint64_t largest_free_run;
} bursar_stack_reading;

// The options of a sleep. Zeroes but for the size are the defaults, and so is a null pointer to it: nothing is lost, and nothing
// stays charged.
typedef struct bursar_sleep_options {
  // The size of this structure: `sizeof(bursar_sleep_options)`.
  size_t struct_size;
  // The longest time to wait for work that is under way, in milliseconds; zero for a minute.
  uint64_t timeout_ms;
  // One to leave what sleeps charged, so that waking is not refused by a limit. Zero otherwise.
  uint32_t keep_place;
  // One to give all contents up, which takes no host memory. Zero otherwise.
  uint32_t discard;
} bursar_sleep_options;

// The result of falling asleep.
typedef struct bursar_sleep_report {
  // The size of this structure, set by the caller: `sizeof(bursar_sleep_report)`.
  size_t struct_size;
  // The bytes of device memory that went back to the driver.
  uint64_t released;
  // The bytes of contents that were copied to the host.
  uint64_t saved;
  // The bytes of contents that were given up.
  uint64_t discarded;
  // The bytes that stay on the device, because the driver did not take them back.
  uint64_t kept;
  // The time that it took, in microseconds.
  uint64_t elapsed_us;
} bursar_sleep_report;

// The result of waking.
typedef struct bursar_wake_report {
  // The size of this structure, set by the caller: `sizeof(bursar_wake_report)`.
  size_t struct_size;
  // The bytes of device memory that were taken from the driver again.
  uint64_t taken;
  // The bytes of contents that were copied back.
  uint64_t restored;
  // The time that it took, in microseconds.
  uint64_t elapsed_us;
} bursar_wake_report;

// The memory of a device that sleeps, at one moment.
typedef struct bursar_sleep_reading {
  // The size of this structure, set by the caller: `sizeof(bursar_sleep_reading)`.
  size_t struct_size;
  // The bytes of device memory that waking takes.
  uint64_t asleep;
  // The bytes of host memory that contents lie in.
  uint64_t on_host;
  // One of `BURSAR_SLEEP_*`.
  uint32_t state;
  // Zero.
  uint32_t reserved;
} bursar_sleep_reading;

// Memory that was allocated; `{0}` is null.
typedef struct bursar_block {
  // The number of the handle.
  uint64_t id;
  // The address on the device, as a `CUdeviceptr`.
  uint64_t address;
} bursar_block;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the version of the library, such as "0.1.0".
//
// Errors: none.
// Threads: any.
// Ownership: the text lasts as long as the library is loaded.
const char *bursar_version(void);

// Returns the number of the interface that the library has, to be compared with `BURSAR_INTERFACE` of the header.
//
// Errors: none.
// Threads: any.
// Ownership: none.
uint32_t bursar_interface(void);

// Returns the name of a status, such as "BURSAR_OUT_OF_MEMORY"; null for a number that is none.
//
// Errors: none.
// Threads: any.
// Ownership: the text lasts as long as the library is loaded.
const char *bursar_status_name(int32_t status);

// Reads the last failure of this thread. Calls that succeed leave it as it is, and so does this one.
//
// Errors: `BURSAR_INVALID_ARGUMENT` if `out` is null or of another size, or the thread has had no failure.
// Threads: any; each has its own last failure.
// Ownership: the structure is the caller's.
//
// # Safety
// `out` is null or points to a `bursar_error`.
bursar_status bursar_last_error(struct bursar_error *out);

// Copies the explanation of the last request of this thread that was refused for want of memory: what was asked for, the
// figures of the limit and the device, who holds the rest, and what would have had to be freed. It is several lines, and
// empty if no request was refused.
//
// The text is cut to fit `capacity` bytes with a zero byte at its end, and `*length` is how many bytes all of it has without
// one. To ask for the length, pass a null `buffer` with a capacity of zero; `length` may be null.
//
// Errors: `BURSAR_INVALID_ARGUMENT` if `buffer` is null and `capacity` is not zero; that is then the last failure, and the last
// refusal stays.
// Threads: any; each has its own last refusal.
// Ownership: the buffer is the caller's.
//
// # Safety
// `buffer` is null or points to `capacity` bytes; `length` is null or points to a `size_t`.
bursar_status bursar_last_refusal(char *buffer,
                                  size_t capacity,
                                  size_t *length);

// Opens a driver: CUDA, or simulated devices where that is chosen or CUDA does not work. `bursar_driver_read` says which.
//
// Errors: `BURSAR_NO_DRIVER` with the reason, also where `BURSAR_DRIVER` or `BURSAR_SIM_DEVICES` make no sense;
// `BURSAR_INVALID_ARGUMENT`. `*out` is then null.
// Threads: any.
// Ownership: the caller closes `*out` with `bursar_driver_close`; devices that were opened from it stay open.
//
// # Safety
// `options` is null or points to a `bursar_driver_options`; `out` is null or points to a `bursar_driver`.
bursar_status bursar_driver_open(const struct bursar_driver_options *options,
                                 struct bursar_driver *out);

// Says which driver it is, and how many devices it has.
//
// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`.
// Threads: any.
// Ownership: the structure is the caller's.
//
// # Safety
// `out` is null or points to a `bursar_driver_facts`.
bursar_status bursar_driver_read(struct bursar_driver driver, struct bursar_driver_facts *out);

// Closes a driver. What was made from it stays as it is.
//
// Errors: `BURSAR_INVALID_HANDLE`.
// Threads: any; it waits for calls of other threads that are running.
// Ownership: the handle is used up.
bursar_status bursar_driver_close(struct bursar_driver driver);

// Reads the facts about a device, by its ordinal; it need not be open.
//
// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`, `BURSAR_NO_DEVICE`, `BURSAR_DRIVER_FAILED`.
// Threads: any.
// Ownership: the structure is the caller's.
//
// # Safety
// `out` is null or points to a `bursar_device_facts`.
bursar_status bursar_device_read(struct bursar_driver driver,
                                 uint32_t device,
                                 struct bursar_device_facts *out);

// Reads how much memory of a device is free at this moment, by its ordinal. It need not be open; CUDA then makes a context for
// the moment, unless the driver only observes.
//
// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`, `BURSAR_NO_DEVICE`, `BURSAR_DRIVER_FAILED`.
// Threads: any.
// Ownership: the structure is the caller's.
//
// # Safety
// `out` is null or points to a `bursar_device_memory`.
bursar_status bursar_device_memory_read(struct bursar_driver driver,
                                        uint32_t device,
                                        struct bursar_device_memory *out);

// Returns the tag of a name: the same number for the same name, for the life of the process. The memory of a new name is never
// freed, and counts tell 4,095 tags apart, so a name should stand for a kind of allocation and not for a single one.
//
// Errors: `BURSAR_INVALID_ARGUMENT` if `name` or `out` is null, or `name` is not UTF-8.
// Threads: any.
// Ownership: `name` is copied.
//
// # Safety
// `name` is null or points to a text that ends with a zero byte; `out` is null or points to a `uint32_t`.
bursar_status bursar_tag(const char *name,
                         uint32_t *out);

// Opens a device of a driver, by its ordinal. Its streams, statistics and memory are those of this handle: a device that is
// opened twice has them twice, and they do not mix.
//
// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`, `BURSAR_NO_DEVICE`, `BURSAR_DRIVER_FAILED`. `*out` is then null.
// Threads: any.
// Ownership: the caller closes `*out` with `bursar_device_close`; what was made on it stays.
//
// # Safety
// `options` is null or points to a `bursar_device_options`; `out` is null or points to a `bursar_device`.
bursar_status bursar_device_open(struct bursar_driver driver,
                                 uint32_t device,
                                 const struct bursar_device_options *options,
                                 struct bursar_device *out);

// Closes a device. Stacks, streams and reservations that were made on it stay as they are, and keep it open.
//
// Errors: `BURSAR_INVALID_HANDLE`.
// Threads: any; it waits for calls of other threads that are running.
// Ownership: the handle is used up.
bursar_status bursar_device_close(struct bursar_device device);

// Reads the counts of everything that was granted on a device, by all of its stacks.
//
// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`; `BURSAR_UNSUPPORTED` if the device was opened without statistics.
// Threads: any.
// Ownership: the structure is the caller's.
//
// # Safety
// `out` is null or points to a `bursar_statistics`.
bursar_status bursar_device_statistics(struct bursar_device device,
                                       struct bursar_statistics *out);

// Reads the counts of what was granted on a device under one tag; those of tags beyond the first 4,095 are counted together.
//
// Errors: `BURSAR_INVALID_HANDLE`; `BURSAR_INVALID_ARGUMENT`, also for a tag that was never made; `BURSAR_UNSUPPORTED` if the
// device was opened without statistics.
// Threads: any.
// Ownership: the structure is the caller's.
//
// # Safety
// `out` is null or points to a `bursar_statistics`.
bursar_status bursar_device_statistics_of(struct bursar_device device,
                                          uint32_t tag,
                                          struct bursar_statistics *out);

// Sets memory of a device aside in its ledger, which all processes of this user share: at once, or when its turn comes within
// the time of the options. A stack draws on it by `BURSAR_ACCOUNT_RESERVATION`.
//
// Errors: `BURSAR_OUT_OF_BUDGET` or `BURSAR_WITHHELD` where there is no room at once, or never will be; `BURSAR_TIMED_OUT`, with
// the numbers at that moment, or none where another process had the lock of the ledger; `BURSAR_CANCELLED`; `BURSAR_LEDGER`, also
// where it has the lock and nothing is waited for; `BURSAR_FORKED`, `BURSAR_DRIVER_FAILED`; `BURSAR_INVALID_HANDLE`,
// `BURSAR_INVALID_ARGUMENT`. `*out` is then null, and nothing waits any more.
// Threads: any; while it waits, only the calling thread does.
// Ownership: the caller closes `*out` with `bursar_reservation_close`.
//
// # Safety
// `options` is null or points to a `bursar_reserve_options`; `out` is null or points to a `bursar_reservation`.
bursar_status bursar_reserve(struct bursar_device device,
                             uint64_t bytes,
                             const struct bursar_reserve_options *options,
                             struct bursar_reservation *out);

// Returns the share of a device that `bursar run`, or whoever else started this process, set aside for it. `*out` is null where
// there is none.
//
// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`; `BURSAR_LEDGER` if there is one and it cannot be used;
// `BURSAR_FORKED`.
// Threads: any.
// Ownership: the caller closes `*out` with `bursar_reservation_close`.
//
// # Safety
// `out` is null or points to a `bursar_reservation`.
bursar_status bursar_share(struct bursar_device device,
                           struct bursar_reservation *out);

// Says how much of a device's memory a newcomer could have now, whatever others hold or have set aside.
//
// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`, `BURSAR_LEDGER`, `BURSAR_FORKED`, `BURSAR_DRIVER_FAILED`.
// Threads: any.
// Ownership: none.
//
// # Safety
// `out` is null or points to a `uint64_t`.
bursar_status bursar_available(struct bursar_device device,
                               uint64_t *out);

// Reads a reservation.
//
// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`.
// Threads: any.
// Ownership: the structure is the caller's.
//
// # Safety
// `out` is null or points to a `bursar_reservation_reading`.
bursar_status bursar_reservation_read(struct bursar_reservation reservation,
                                      struct bursar_reservation_reading *out);

// Closes a reservation. It ends when the last stack that draws on it is closed too, and what is undrawn then returns.
//
// Errors: `BURSAR_INVALID_HANDLE`.
// Threads: any; it waits for calls of other threads that are running.
// Ownership: the handle is used up.
bursar_status bursar_reservation_close(struct bursar_reservation reservation);

// Makes a cancellation, to be given to reservations that wait.
//
// Errors: `BURSAR_INVALID_ARGUMENT`.
// Threads: any.
// Ownership: the caller closes `*out` with `bursar_cancellation_close`.
//
// # Safety
// `out` is null or points to a `bursar_cancellation`.
bursar_status bursar_cancellation_create(struct bursar_cancellation *out);

// Gives up every reservation that waits with this cancellation, and every one that is asked for with it later: each returns
// `BURSAR_CANCELLED`.
//
// Errors: `BURSAR_INVALID_HANDLE`.
// Threads: any.
// Ownership: the handle stays the caller's.
bursar_status bursar_cancel(struct bursar_cancellation cancellation);

// Closes a cancellation. Reservations that wait with it go on.
//
// Errors: `BURSAR_INVALID_HANDLE`.
// Threads: any; it waits for calls of other threads that are running.
// Ownership: the handle is used up.
bursar_status bursar_cancellation_close(struct bursar_cancellation cancellation);

// Makes a stream of a device, or takes one that was closed before. Zero is the default priority; lower ones are more urgent.
//
// Errors: `BURSAR_INVALID_HANDLE`; `BURSAR_INVALID_ARGUMENT`, also for a priority outside the device's range;
// `BURSAR_TOO_MANY_STREAMS`, `BURSAR_DRIVER_FAILED`; `BURSAR_UNSUPPORTED` where the driver only observes. `*out` is then null.
// Threads: any.
// Ownership: the caller closes `*out` with `bursar_stream_close`.
//
// # Safety
// `out` is null or points to a `bursar_stream`.
bursar_status bursar_stream_create(struct bursar_device device,
                                   int32_t priority,
                                   struct bursar_stream *out);

// Lets a stream be used that somebody else made: a `CUstream` of the device's primary context. Null is the legacy default
// stream; the per-thread default stream is refused.
//
// Close it before the stream is destroyed. That is when what was freed on it is put in order, so that its memory stays
// reusable.
//
// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`, `BURSAR_INVALID_STREAM`, `BURSAR_TOO_MANY_STREAMS`;
// `BURSAR_UNSUPPORTED` where the driver only observes. `*out` is then null.
// Threads: any.
// Ownership: the `CUstream` stays the caller's, who closes `*out` with `bursar_stream_close` first.
//
// # Safety
// `raw` is null or a stream of the device that lives until `*out` is closed; `out` is null or points to a `bursar_stream`.
bursar_status bursar_stream_adopt(struct bursar_device device,
                                  void *raw,
                                  struct bursar_stream *out);

// Returns the `CUstream` of a stream, for kernels and other libraries. From then on the driver is asked at each allocation and
// free on it whether the stream is being captured into a graph.
//
// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`.
// Threads: any.
// Ownership: the `CUstream` is not the caller's to destroy, and must not be used once the stream is closed.
//
// # Safety
// `out` is null or points to a `void *`.
bursar_status bursar_stream_raw(struct bursar_stream stream,
                                void **out);

// Waits until everything that was submitted to a stream so far has run.
//
// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_STREAM` while it is being captured into a graph, `BURSAR_DRIVER_FAILED`.
// Threads: any.
// Ownership: none.
bursar_status bursar_stream_synchronize(struct bursar_stream stream);

// Closes a stream. Memory that was allocated on it stays; work that was submitted to it still runs. A stream of ours goes to
// whoever makes the next one.
//
// Errors: `BURSAR_INVALID_HANDLE`.
// Threads: any; it waits for calls of other threads that are running, also for those that synchronize with the stream.
// Ownership: the handle is used up. A `CUstream` that was adopted may be destroyed from now on.
bursar_status bursar_stream_close(struct bursar_stream stream);

// Builds the memory of a device as the options say.
//
// Errors: `BURSAR_INVALID_HANDLE`; `BURSAR_INVALID_ARGUMENT`, also for a reservation of another device; `BURSAR_LEDGER`,
// `BURSAR_FORKED`, `BURSAR_DRIVER_FAILED`; `BURSAR_UNSUPPORTED`, also where the driver only observes. `*out` is then null.
// Threads: any.
// Ownership: the caller closes `*out` with `bursar_stack_close`.
//
// # Safety
// `options` is null or points to a `bursar_stack_options`; `out` is null or points to a `bursar_stack`.
bursar_status bursar_stack_open(struct bursar_device device,
                                const struct bursar_stack_options *options,
                                struct bursar_stack *out);

// Closes a stack, which gives everything back that it holds of the device.
//
// Errors: `BURSAR_INVALID_HANDLE`; `BURSAR_STILL_HELD` if it has blocks that were not freed: it then stays open.
// Threads: any; it waits for calls of other threads that are running, and whoever uses the stack meanwhile is told that it is
// closed.
// Ownership: the handle is used up, if the call succeeds.
bursar_status bursar_stack_close(struct bursar_stack stack);

// Opens the device of a stack once more: the one that it was made on, with its streams and statistics. A stack that outlived the
// handles of its device and its streams gets streams to free its blocks on in this way.
//
// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`. `*out` is then null.
// Threads: any.
// Ownership: the caller closes `*out` with `bursar_device_close`.
//
// # Safety
// `out` is null or points to a `bursar_device`.
bursar_status bursar_stack_device(struct bursar_stack stack,
                                  struct bursar_device *out);

// Reads what a stack holds.
//
// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`.
// Threads: any.
// Ownership: the structure is the caller's.
//
// # Safety
// `out` is null or points to a `bursar_stack_reading`.
bursar_status bursar_stack_read(struct bursar_stack stack, struct bursar_stack_reading *out);

// Gives back what a stack holds and nobody uses, until no more than `keep` bytes of it are cached. A stack without a pool has
// the driver give back what it can, whatever `keep` is. `*released`, if it is not null, is how many bytes went.
//
// Errors: `BURSAR_INVALID_HANDLE`.
// Threads: any.
// Ownership: none.
//
// # Safety
// `released` is null or points to a `uint64_t`.
bursar_status bursar_stack_trim(struct bursar_stack stack,
                                uint64_t keep,
                                uint64_t *released);

// Says how many bytes a request would be granted, which is what limits are charged with.
//
// Errors: `BURSAR_INVALID_HANDLE`; `BURSAR_INVALID_ARGUMENT` for zero bytes, more than 4 EiB, and an
// alignment that is not a power of two up to 2 MiB.
// Threads: any.
// Ownership: none.
//
// # Safety
// `out` is null or points to a `uint64_t`.
bursar_status bursar_granted_size(struct bursar_stack stack,
                                  uint64_t bytes,
                                  uint64_t alignment,
                                  uint64_t *out);

// Puts the memory of all pools on a device to sleep: contents go to pinned host memory, device memory goes back to the driver
// and its charge to the ledger. Addresses stay, and blocks can be freed. Work that was recorded is waited for; work that was
// not must have run. Until it wakes, allocations are `BURSAR_ASLEEP`, and the memory must not be used. Memory that sleeps
// already stays as it is.
//
// Errors: `BURSAR_STILL_IN_USE` where work goes on for longer than the options allow; `BURSAR_INVALID_STREAM` while a stream is being
// captured (between `bursar_capture_begin` and that it succeeds, and what the capture allocates is `BURSAR_ASLEEP`); `BURSAR_ASLEEP`
// while another thread has it fall asleep or wake; `BURSAR_UNSUPPORTED` for a device without a pool; `BURSAR_OUT_OF_BUDGET` and `BURSAR_OTHER` for want of host memory;
// `BURSAR_DRIVER_FAILED`, `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`. It is then awake as it was, unless the reading says otherwise.
// Threads: any.
// Ownership: the structure is the caller's. Host memory is kept for the next sleep, with the device.
//
// # Safety
// `options` is null or points to a `bursar_sleep_options`; `out` is null or points to a `bursar_sleep_report`.
bursar_status bursar_device_sleep(struct bursar_device device,
                                  const struct bursar_sleep_options *options,
                                  struct bursar_sleep_report *out);

// Wakes what sleeps on a device: at the same addresses, with the same contents. Where others have the memory, it is waited for in
// the ledger's queue, `timeout_ms` at most.
//
// Errors: `BURSAR_OUT_OF_BUDGET`, `BURSAR_OUT_OF_MEMORY` or `BURSAR_WITHHELD` where there is no room in time; `BURSAR_ASLEEP` while another thread has
// it fall asleep or wake; `BURSAR_LEDGER`, `BURSAR_DRIVER_FAILED`, `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`. It then sleeps as it did,
// or, where tags had slept by themselves before, these alone.
// Threads: any; while it waits, only the calling thread does.
// Ownership: the structure is the caller's.
//
// # Safety
// `out` is null or points to a `bursar_wake_report`.
bursar_status bursar_device_wake(struct bursar_device device,
                                 uint64_t timeout_ms,
                                 struct bursar_wake_report *out);

// Reads whether the memory of a device sleeps, and how much of it.
//
// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`.
// Threads: any.
// Ownership: the structure is the caller's.
//
// # Safety
// `out` is null or points to a `bursar_sleep_reading`.
bursar_status bursar_device_sleep_read(struct bursar_device device,
                                       struct bursar_sleep_reading *out);

// Allocates memory that work submitted to `stream` from now on may use. Its contents are undefined.
//
// `alignment` is a power of two up to 2 MiB, or zero; a block is aligned to 256 bytes in any case. `tag` says what it is for:
// a number that `bursar_tag` returned, or `BURSAR_UNTAGGED`.
//
// Errors: `BURSAR_OUT_OF_BUDGET`, `BURSAR_OUT_OF_MEMORY` and `BURSAR_WITHHELD`, which `bursar_last_refusal` explains;
// `BURSAR_INVALID_HANDLE`; `BURSAR_INVALID_ARGUMENT`, also for zero bytes and more than 4 EiB; `BURSAR_INVALID_STREAM`; `BURSAR_LEDGER`,
// `BURSAR_FORKED`; `BURSAR_DRIVER_FAILED`, also for an earlier free that failed. `*out` is then null.
// Threads: any.
// Ownership: the caller frees `*out` with `bursar_free`.
//
// # Safety
// `out` is null or points to a `bursar_block`.
bursar_status bursar_allocate(struct bursar_stack stack,
                              uint64_t bytes,
                              uint64_t alignment,
                              struct bursar_stream stream,
                              uint32_t tag,
                              struct bursar_block *out);

// Frees a block in the order of `stream`, once the work that was submitted to it so far has run, and after the uses on other
// streams that were recorded. Uses on another stream that were not recorded must come before that point.
//
// A failure of the driver to take the memory back is no failure of this call: the memory is kept, tried again, and reported by
// the next allocation.
//
// Errors: `BURSAR_INVALID_HANDLE`, also for a block that was freed already; `BURSAR_INVALID_ARGUMENT` for one with another address
// than it was given out with; `BURSAR_INVALID_STREAM` for a stream of another
// device or one that is being captured into a graph; `BURSAR_DRIVER_FAILED` where the uses cannot be put in order. The block
// then stays as it was.
// Threads: any.
// Ownership: the block is used up, if the call succeeds.
bursar_status bursar_free(struct bursar_block block,
                          struct bursar_stream stream);

// Records that work which was submitted to `stream` uses a block that was allocated on another stream: the free of the block
// comes after that work. The caller has ordered the work after the allocation, as by an event. `access` is `BURSAR_READ` or
// `BURSAR_WRITE`.
//
// Errors: `BURSAR_INVALID_HANDLE`; `BURSAR_INVALID_ARGUMENT`, also for a block with another address than it was given out with;
// `BURSAR_INVALID_STREAM` for a stream of another device; `BURSAR_UNSUPPORTED` for memory whose uses cannot be tracked; `BURSAR_ASLEEP` for a
// block that sleeps. Nothing is then recorded.
// Threads: any; a call about the same block waits for this one.
// Ownership: the block stays the caller's.
bursar_status bursar_record_use(struct bursar_block block,
                                struct bursar_stream stream,
                                uint32_t access);

// Makes memory for graphs out of a stack: a stack of its own, with nothing in it yet. What is allocated of it while a stream is
// captured has the same address in every launch, and is nobody else's before the memory is released or closed; what is freed
// in a capture is used again in the same one.
//
// Around a capture stand `bursar_capture_begin` and `bursar_capture_end`; meanwhile `bursar_allocate` and `bursar_free` take this
// stack on the streams of the capture, and on no others. Several graphs may be captured into one memory, one after
// another, if they never run at once: together they hold little more than the largest needs.
//
// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`, `BURSAR_TOO_MANY_STREAMS`, `BURSAR_DRIVER_FAILED`. `*out` is then null.
// Threads: any.
// Ownership: the caller closes `*out` with `bursar_stack_close`, once none of its graphs is launched any more. The handle of
// `stack` may be closed before that.
//
// # Safety
// `out` is null or points to a `bursar_stack`.
bursar_status bursar_graph_memory_open(struct bursar_stack stack,
                                       struct bursar_stack *out);

// Says that a stream is about to be captured into a graph which gets its memory from `memory`. The caller captures it, by
// `cuStreamBeginCapture` or otherwise. A null stream stands for a capture whose streams are not known yet: each enters it with
// `bursar_capture_enter`.
//
// Errors: `BURSAR_INVALID_HANDLE`; `BURSAR_INVALID_ARGUMENT` for a stack that is no memory for graphs, one that was released, and
// one that a capture has begun into; `BURSAR_INVALID_STREAM` for a stream of another device or another capture.
// Threads: any; one capture into a memory at a time.
// Ownership: the caller ends it with `bursar_capture_end`.
bursar_status bursar_capture_begin(struct bursar_stack memory,
                                   struct bursar_stream stream);

// Says that a stream is part of the capture into `memory`, as one is that waits for an event of a captured stream. Of its
// order nothing is known: what others freed is not used on it before the next capture.
//
// Errors: `BURSAR_INVALID_HANDLE`; `BURSAR_INVALID_ARGUMENT` where no capture into `memory` has begun; `BURSAR_INVALID_STREAM` for a
// stream of another device or another capture.
// Threads: any.
// Ownership: none.
bursar_status bursar_capture_enter(struct bursar_stack memory,
                                   struct bursar_stream stream);

// Says that `then` comes after what was captured on `first` so far, and is part of the capture too: the caller had it wait for
// an event. What was freed on `first` may then be used again on `then`.
//
// Errors: `BURSAR_INVALID_HANDLE`; `BURSAR_INVALID_ARGUMENT` where no capture into `memory` has begun, or `first` is not part of it;
// `BURSAR_INVALID_STREAM` for a stream of another device or another capture.
// Threads: any.
// Ownership: none.
bursar_status bursar_capture_order(struct bursar_stack memory,
                                   struct bursar_stream first,
                                   struct bursar_stream then);

// Says that the capture into `memory` has ended, with a graph or without one. What is in no block is free for the next capture.
//
// Errors: `BURSAR_INVALID_HANDLE`; `BURSAR_INVALID_ARGUMENT` where none has begun.
// Threads: any.
// Ownership: blocks that were not freed stay the caller's: the graph writes them in each launch.
bursar_status bursar_capture_end(struct bursar_stack memory);

// Says that a graph which was captured into `memory` has been launched on a stream: the memory goes back only after what the
// stream was given so far.
//
// Errors: `BURSAR_INVALID_HANDLE`; `BURSAR_INVALID_ARGUMENT` for a stack that is no memory for graphs; `BURSAR_INVALID_STREAM`,
// `BURSAR_DRIVER_FAILED`.
// Threads: any.
// Ownership: none.
bursar_status bursar_graph_launched(struct bursar_stack memory,
                                    struct bursar_stream stream);

// Says that no graph is captured into `memory` or launched with it any more: what is in no block goes back to the stack that it
// was made of, and the rest as its blocks are freed. `*released`, if it is not null, is how many bytes went at once.
//
// Errors: `BURSAR_INVALID_HANDLE`; `BURSAR_INVALID_ARGUMENT` for a stack that is no memory for graphs, and while a capture into it
// has not ended.
// Threads: any.
// Ownership: the handle stays the caller's, to free its blocks and to close it.
//
// # Safety
// `released` is null or points to a `uint64_t`.
bursar_status bursar_graph_memory_release(struct bursar_stack memory,
                                          uint64_t *released);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BURSAR_H */

// How a program of these trials speaks with the one that watches it: by files in the folder TRIAL_DIR.
//
// A check is a line in `checks`. A question is a file that the watcher answers with another: what the card has given out since the
// trial began, what the ledger has charged in all, and what of it to the process that asks.
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    PAGE = 2 << 20,
    PATIENCE_S = 60,
    // What the driver may take for itself while a program runs: it is charged as well, some time later.
    GROWN_MAX = 64 << 20,
    // The time after which the library looks at that again.
    LOOK_US = 1100000,
};

struct Answer {
    long long given;
    long long charged;
    long long charged_here;
};

static int failures;

static inline double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static inline const char *folder(void) {
    const char *folder = getenv("TRIAL_DIR");
    return folder ? folder : ".";
}

static inline void append(const char *text) {
    char path[4096];
    snprintf(path, sizeof path, "%s/checks", folder());
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0 || write(file, text, strlen(text)) < 0)
        fprintf(stderr, "%s cannot be written\n", path);
    if (file >= 0)
        close(file);
    fputs(text, stderr);
}

static inline void record(const char *outcome, const char *name, const char *format, va_list values) {
    char detail[1024], line[1400];
    vsnprintf(detail, sizeof detail, format, values);
    snprintf(line, sizeof line, "%s\t%s\t%s\n", outcome, name, detail);
    append(line);
}

// Records whether something holds, with what was seen.
__attribute__((format(printf, 3, 4))) static inline int check(int holds, const char *name, const char *format, ...) {
    va_list values;
    va_start(values, format);
    record(holds ? "ok" : "no", name, format, values);
    va_end(values);
    failures += !holds;
    return holds;
}

// Records a figure that is worth seeing in the table.
__attribute__((format(printf, 2, 3))) static inline void see(const char *name, const char *format, ...) {
    va_list values;
    va_start(values, format);
    record("see", name, format, values);
    va_end(values);
}

// Records that the machine does not have what is to be tried.
__attribute__((format(printf, 2, 3))) static inline void skip(const char *name, const char *format, ...) {
    va_list values;
    va_start(values, format);
    record("skip", name, format, values);
    va_end(values);
}

// Asks the watcher, and waits for the answer. A `mark` is judged by it, and a `look` is not.
static inline struct Answer ask(const char *kind, const char *name) {
    static int number;
    struct Answer answer = { -1, -1, -1 };
    char draft[4096], path[4096], reply[4096];
    snprintf(draft, sizeof draft, "%s/draft-%d", folder(), (int)getpid());
    snprintf(path, sizeof path, "%s/ask-%d-%d", folder(), (int)getpid(), number);
    snprintf(reply, sizeof reply, "%s/answer-%d-%d", folder(), (int)getpid(), number);
    number++;
    FILE *file = fopen(draft, "w");
    if (!file)
        return answer;
    fprintf(file, "{\"kind\": \"%s\", \"name\": \"%s\", \"pid\": %d}\n", kind, name, (int)getpid());
    fclose(file);
    rename(draft, path);
    for (double end = seconds() + PATIENCE_S; seconds() < end; usleep(500)) {
        if (!(file = fopen(reply, "r")))
            continue;
        int read = fscanf(file, "%lld %lld %lld", &answer.given, &answer.charged, &answer.charged_here);
        fclose(file);
        if (read == 3)
            return answer;
    }
    check(0, name, "nobody answered for %d s", PATIENCE_S);
    exit(1);
}

static inline struct Answer mark(const char *name) { return ask("mark", name); }
static inline struct Answer look(void) { return ask("look", "look"); }

// Returns whether the library is loaded into this process.
static inline int is_enforced(void) {
    char line[4096];
    int found = 0;
    const char *path = getenv("BURSAR_ENFORCE_LIBRARY"), *name = path && strrchr(path, '/') ? strrchr(path, '/') : "/libbursar_enforce.so";
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        found |= strstr(line, name) != NULL;
    if (maps)
        fclose(maps);
    return found;
}

// The first thing a program does: the watcher takes note of the card before CUDA is touched.
static inline void begin(void) {
    mark("start");
    if (!check(is_enforced(), "the library is loaded", "%s", getenv("LD_PRELOAD") ? getenv("LD_PRELOAD") : "LD_PRELOAD is not set"))
        exit(1);
}

static inline size_t share_bytes(void) {
    const char *text = getenv("TRIAL_SHARE");
    return text ? strtoull(text, NULL, 10) : 0;
}

static inline int end(void) {
    see("checks that failed", "%d", failures);
    return failures != 0;
}

// Checks that the program is told its share. Without that it would go on to fill the card, so it ends.
static inline void is_share(size_t total) {
    if (!check(total == share_bytes(), "the share is what there is", "%zu, share %zu", total, share_bytes()))
        exit(end());
}

// A program that loads a library which is linked with the driver, in the way that it is told.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **words) {
    int flags = !strcmp(words[1], "global") ? RTLD_GLOBAL : RTLD_LOCAL;
    if (!strcmp(words[1], "deep"))
        flags |= RTLD_DEEPBIND;
    void *library = dlopen(words[2], RTLD_LAZY | flags);
    if (!library)
        return fprintf(stderr, "%s\n", dlerror()), 9;
    int (*take_all)(void) = dlsym(library, "take_all");
    return take_all ? take_all() : 8;
}

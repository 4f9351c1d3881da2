/* What the programs of these tests require: a condition that does not hold ends the program and is told, with the last error. */
#pragma once
#include <bursar.h>
#include <stdio.h>
#include <stdlib.h>

#define REQUIRE(what)                                                                                                  \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            bursar_error failed = {.struct_size = sizeof(failed)};                                                     \
            bursar_last_error(&failed);                                                                                \
            fprintf(stderr, "line %d: %s does not hold (last error: %s)\n", __LINE__, #what, failed.message);          \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

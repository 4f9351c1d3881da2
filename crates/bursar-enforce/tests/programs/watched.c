// A program that is refused memory, holds some, and waits to be looked at until its input ends.
#include "driver.h"

int main(int count, char **words) {
    CHECK(count == 3);
    size_t refused = strtoull(words[1], NULL, 10), times = strtoull(words[2], NULL, 10);
    start("local");
    Pointer small, large, none = 7;
    OK(cuMemAlloc(&small, 4 << 20));
    OK(cuMemAlloc(&large, 8 << 20));
    OK(cuMemFree(small));
    for (size_t time = 0; time < times; time++)
        CHECK(cuMemAlloc(&none, refused) == OUT_OF_MEMORY && none == 7);
    puts("ready");
    fflush(stdout);
    getchar();
    OK(cuMemFree(large));
    return 0;
}

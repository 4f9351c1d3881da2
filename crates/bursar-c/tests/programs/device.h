/* The first device, for programs that need no more of its driver. */
#pragma once
#include "require.h"

static inline bursar_device open_device(void) {
    bursar_driver driver;
    bursar_device device;
    REQUIRE(bursar_driver_open(NULL, &driver) == BURSAR_OK);
    REQUIRE(bursar_device_open(driver, 0, NULL, &device) == BURSAR_OK);
    REQUIRE(bursar_driver_close(driver) == BURSAR_OK);
    return device;
}

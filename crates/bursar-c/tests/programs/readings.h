/* Every structure that a call fills in, each with its size, for programs that make all of the calls. */
#pragma once
#include <bursar.h>

typedef struct {
    bursar_driver_facts driver;
    bursar_device_facts device;
    bursar_device_memory memory;
    bursar_statistics counts;
    bursar_stack_reading stack;
    bursar_sleep_report slept;
    bursar_wake_report woken;
    bursar_sleep_reading sleep;
    bursar_reservation_reading reservation;
} readings;

static inline readings sized_readings(void) {
    readings into = {
        .driver.struct_size = sizeof(into.driver),
        .device.struct_size = sizeof(into.device),
        .memory.struct_size = sizeof(into.memory),
        .counts.struct_size = sizeof(into.counts),
        .stack.struct_size = sizeof(into.stack),
        .slept.struct_size = sizeof(into.slept),
        .woken.struct_size = sizeof(into.woken),
        .sleep.struct_size = sizeof(into.sleep),
        .reservation.struct_size = sizeof(into.reservation),
    };
    return into;
}

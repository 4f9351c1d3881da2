//! Clause S6: the variable is read when a pool is made, and nonsense is logged once. In a process of its own, since
//! both the environment and the log belong to the process.
#![allow(unsafe_code)]

mod log;

use bursar_core::{Bytes, DeviceContext, DeviceId};
use bursar_device::StreamPool;
use bursar_sim::Sim;
use log::{listen, logged};
use tracing::Level;

fn set(value: Option<&str>) {
    match value {
        // SAFETY: this process runs one test, which no other thread runs beside.
        Some(value) => unsafe { std::env::set_var("BURSAR_POOL_MB_PER_STREAM", value) },
        // SAFETY: as above.
        None => unsafe { std::env::remove_var("BURSAR_POOL_MB_PER_STREAM") },
    }
}

#[test]
fn s6_the_variable_is_read_when_a_pool_is_made_and_nonsense_is_logged_once() {
    listen();
    let context = DeviceContext::open(Sim::immediate(), DeviceId(0)).expect("a simulated device opens");
    let size = |value| {
        set(value);
        StreamPool::new(context.clone()).bytes_per_stream()
    };

    assert_eq!(size(None), Bytes::mib(256));
    assert_eq!(size(Some(" 64 ")), Bytes::mib(64));
    let earlier = StreamPool::new(context.clone());
    assert!(logged("").is_empty(), "nothing is wrong yet");

    for nonsense in ["zero", "0", "-1", ""] {
        assert_eq!(size(Some(nonsense)), Bytes::mib(256), "{nonsense:?}");
    }
    assert_eq!(earlier.bytes_per_stream(), Bytes::mib(64));
    let log = logged("");
    let [(level, message)] = &log[..] else { panic!("{log:?}") };
    assert_eq!(*level, Level::WARN);
    assert!(message.contains("BURSAR_POOL_MB_PER_STREAM") && message.contains("zero"), "{message}");
}

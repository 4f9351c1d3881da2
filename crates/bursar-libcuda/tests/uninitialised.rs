//! K1 before `cuInit`: nothing works but what needs no initialisation. In a process of its own, which never initialises.
#![allow(unsafe_code)]

mod rig;

use rig::{ALWAYS, NOT_INITIALIZED, call_words, symbols};

#[test]
fn k1_nothing_works_before_initialisation() {
    for symbol in symbols().filter(|symbol| !ALWAYS.contains(symbol)) {
        assert_eq!(call_words(symbol, &[]), NOT_INITIALIZED, "{symbol}");
        assert_eq!(call_words(symbol, &[0x10; 12]), NOT_INITIALIZED, "{symbol} with arguments that make no sense");
    }
    let mut version = 0i32;
    ok!(cuDriverGetVersion(&mut version));
    assert_eq!(version, 12080);
    assert_eq!(cu!(cuInit(1u64)), rig::INVALID_VALUE, "a flag that does not exist");
    for nvml in ["nvmlShutdown", "nvmlDeviceGetCount_v2", "nvmlSystemGetDriverVersion"] {
        assert_eq!(call_words(nvml, &[]), 1, "{nvml} of an NVML that is not initialised");
    }
}

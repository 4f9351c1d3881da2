//! The least and the greatest numbers are refused, or bounded as documented, and end no program.
#![allow(unsafe_code)]

mod rig;

use bursar_core::{Access, AllocTag, Bytes, DeviceId, DevicePtr, Driver, HostFlags, Note, Pattern};
use bursar_core::{RawEvent, RawPages, RawStream, Status};
use bursar_sim::{Launch, Sim};
use rig::Rig;

/// Makes a call that requires promises of its caller, which the simulator checks.
macro_rules! checked {
    ($call:expr) => {{
        // SAFETY: the simulator checks it.
        unsafe { $call }
    }};
}

const NUMBERS: [u64; 8] = [0, 1, 255, 1 << 32, 1 << 46, i64::MAX as u64, u64::MAX - 1, u64::MAX];

#[test]
fn page_sizes_are_powers_of_two_within_bounds() {
    for bytes in NUMBERS {
        let sim = Sim::builder().immediate().page_granularity(Bytes(bytes)).build();
        let page = sim.facts(DeviceId(0)).unwrap().capabilities.page_granularity.expect("pages").get();
        assert!(page.is_power_of_two() && (4096..=1 << 30).contains(&page), "{page}");
        assert!(page >= bytes.min(1 << 30), "{page} for {bytes}");
        let base = sim.address_reserve(DeviceId(0), page, 0).expect("addresses");
        assert!(base.0.is_multiple_of(page));
    }
}

#[test]
fn no_devices_and_too_many() {
    let none = Sim::builder().devices(0, Bytes::gib(1)).build();
    assert_eq!(none.device_count(), 0, "none is not two");
    assert_eq!(none.allocate(DeviceId(0), 1).unwrap_err().status, Status::InvalidDevice);
    none.settle();
    assert_eq!(Sim::builder().build().device_count(), 2, "nobody said");
    for count in [257, 300, usize::MAX] {
        let many = Sim::builder().immediate().devices(count, Bytes(u64::MAX)).device(Bytes(1)).build();
        assert_eq!(many.device_count(), 256, "{count}");
        let last = many.allocate(DeviceId(255), 1 << 40).expect("addresses of its own");
        let addresses: Vec<_> = (0..256).map(|device| many.facts(DeviceId(device)).unwrap().pci).collect();
        assert!(addresses.windows(2).all(|pair| pair[0] < pair[1]), "each has an address of its own");
        assert_eq!(many.peek(last, 4).len(), 4);
    }
}

#[test]
fn devices_of_any_size() {
    for bytes in NUMBERS {
        for sim in
            [Sim::builder().device(Bytes(bytes)).build(), Sim::builder().immediate().device(Bytes(bytes)).build()]
        {
            let device = DeviceId(0);
            let room = sim.memory(device).unwrap();
            let total = Bytes(bytes.min(1 << 45));
            assert_eq!((room.free, room.total), (total, total), "no more than it has addresses for");
            for wanted in NUMBERS {
                match sim.allocate(device, wanted) {
                    Ok(_) => assert!(wanted <= bytes.min(1 << 45), "{wanted} of {bytes}"),
                    Err(error) => assert!(matches!(error.status, Status::OutOfMemory | Status::InvalidValue)),
                }
                let _ = checked!(sim.allocate_async(device, RawStream(0), wanted));
                let _ = sim.pages_create(device, wanted);
            }
        }
    }
}

#[test]
fn looking_at_memory_is_bounded() {
    let sim = Sim::immediate();
    let ptr = sim.allocate(DeviceId(0), 1 << 20).unwrap();
    for at in [DevicePtr(0), ptr, DevicePtr(u64::MAX)] {
        assert_eq!(sim.peek(at, usize::MAX).len(), 64 << 20);
        sim.poke(at, &[1, 2, 3]);
    }
    assert_eq!(sim.peek(ptr, 3), [1, 2, 3]);
}

#[test]
fn addresses_of_any_size_and_alignment() {
    for rig in [Rig::seeded(1), Rig::of(Sim::immediate())] {
        let (sim, device) = (&rig.sim, rig.device);
        for bytes in NUMBERS {
            for align in NUMBERS.into_iter().chain([1 << 21, 1 << 63]) {
                let _ = sim.address_reserve(device, bytes, align);
                let ptr = DevicePtr(align);
                assert!(checked!(sim.address_release(device, ptr, bytes)).is_err());
                assert!(checked!(sim.pages_map(device, ptr, bytes, RawPages(align))).is_err());
                assert!(checked!(sim.pages_allow(device, ptr, bytes)).is_err());
                assert!(checked!(sim.pages_unmap(device, ptr, bytes)).is_err());
            }
        }
    }
}

#[test]
fn handles_that_are_none() {
    let sims = [
        Sim::builder().devices(20, Bytes::gib(1)).build(),
        Sim::builder().devices(20, Bytes::gib(1)).immediate().build(),
    ];
    for sim in sims {
        for number in NUMBERS.into_iter().skip(2) {
            let (device, stream, ptr) = (DeviceId(0), RawStream(number), DevicePtr(number));
            assert!(checked!(sim.stream_destroy(device, stream)).is_err());
            assert!(checked!(sim.fill(device, stream, ptr, Pattern::U32(1), number)).is_err());
            assert!(checked!(sim.free(device, ptr)).is_err());
            assert!(checked!(sim.event_destroy(device, RawEvent(number))).is_err());
            assert!(checked!(sim.host_free(device, std::ptr::without_provenance_mut(number as usize))).is_err());
            let tag = AllocTag::UNTAGGED;
            checked!(sim.note(device, Note::Granted { ptr, bytes: number, stream: RawStream(0), tag }));
            checked!(sim.note(device, Note::Granted { ptr, bytes: u64::MAX, stream, tag }));
            checked!(sim.note(device, Note::Freed { ptr, stream, home: stream }));
            assert!(sim.begin_capture(device, stream).is_err());
            assert!(sim.stream_create(DeviceId(number as u32), i32::MIN).is_err());
            sim.lose_device(DeviceId(number as u32 | 1 << 31));
            sim.touch_host(std::ptr::without_provenance(number as usize), usize::MAX, Access::Write);
            let far = Launch::new("far").writes(ptr, u64::MAX).reads_host(std::ptr::null(), u64::MAX);
            assert!(sim.launch(device, RawStream(0), far).is_err());
            assert_eq!(sim.resident_bytes(DeviceId(u32::MAX)), 0);
        }
    }
}

#[test]
fn host_memory_of_any_size() {
    let rig = Rig::seeded(1);
    let (sim, device) = (&rig.sim, rig.device);
    for bytes in [0, isize::MAX as usize, usize::MAX] {
        assert!(sim.host_allocate(device, bytes, HostFlags::default()).is_err(), "{bytes}");
    }
    let mut byte = 0u8;
    for bytes in [0, usize::MAX] {
        // SAFETY: a size that no memory has is refused.
        let registered = unsafe { sim.host_register(device, &mut byte, bytes, HostFlags::default()) };
        assert_eq!(registered.unwrap_err().status, Status::InvalidValue, "{bytes}");
    }
}

#[test]
fn a_log_of_any_length() {
    for lines in [0, 1, usize::MAX] {
        let sim = Sim::builder().calls_kept(lines).build();
        for _ in 0..10 {
            sim.memory(DeviceId(0)).unwrap();
        }
        assert_eq!((sim.calls().len(), sim.call_count()), (lines.clamp(1, 10), 10));
    }
}

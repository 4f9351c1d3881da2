//! The driver over functions that record their calls.
#![allow(unsafe_code)]

use crate::raw::fake::{self, primary, seen};
use crate::{Cuda, LoadError, Version};
use bursar_core::{
    Bytes, DeviceId, DevicePtr, Driver, DriverError, HostFlags, HostFunction, NumaNode, Progress, RawContext, RawEvent,
    RawStream, Status,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const GPU0: DeviceId = DeviceId(0);
const GPU1: DeviceId = DeviceId(1);
const GLOBAL: u32 = 0;
const RELAXED: u32 = 2;
static RUNNING: AtomicBool = AtomicBool::new(false);

fn cuda() -> Cuda {
    Cuda::start(fake::api(&RUNNING), Version::NEEDED, false).unwrap()
}

/// Returns a driver whose devices are open and whose calls so far are forgotten.
fn opened() -> Cuda {
    let cuda = cuda();
    for device in [GPU0, GPU1] {
        cuda.open(device).unwrap();
    }
    seen();
    cuda
}

fn query(cuda: &Cuda) -> Result<Progress, DriverError> {
    // SAFETY: the fake driver looks at no handle.
    unsafe { cuda.event_query(GPU0, RawEvent(8)) }
}

fn record(cuda: &Cuda, device: DeviceId) -> Result<(), DriverError> {
    // SAFETY: the fake driver looks at no handle.
    unsafe { cuda.event_record(device, RawEvent(8), RawStream::LEGACY) }
}

fn close(cuda: &Cuda, device: DeviceId) -> Result<(), DriverError> {
    // SAFETY: the fake driver gives out nothing.
    unsafe { cuda.close(device) }
}

fn launch(cuda: &Cuda, function: HostFunction) -> Result<(), DriverError> {
    // SAFETY: the fake driver looks at no handle.
    unsafe { cuda.host_function(GPU0, RawStream::LEGACY, function) }
}

#[test]
fn d2_a_call_runs_in_its_devices_context_and_puts_back_what_another_library_made_current() {
    let cuda = opened();
    for foreign in [0, 0xf0] {
        fake::with(|state| state.current = foreign);
        record(&cuda, GPU1).unwrap();
        assert_eq!(
            seen(),
            [
                ("cuCtxSetCurrent", foreign, GLOBAL),
                ("cuEventRecord", primary(1), GLOBAL),
                ("cuCtxSetCurrent", primary(1), GLOBAL),
            ]
        );
        assert_eq!(fake::with(|state| state.current), foreign);
    }
}

#[test]
fn d2_nothing_is_changed_where_the_right_context_is_current() {
    let cuda = opened();
    fake::with(|state| state.current = primary(0));
    record(&cuda, GPU0).unwrap();
    assert_eq!(seen(), [("cuEventRecord", primary(0), GLOBAL)]);
}

/// Makes every call that takes a stream and needs no current context.
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "the same of each: the fake driver looks at nothing")]
fn each_on(cuda: &Cuda, stream: RawStream) -> [Result<(), DriverError>; 6] {
    // SAFETY: the fake driver looks at no handle and no address.
    unsafe {
        [
            cuda.allocate_async(GPU1, stream, 64).map(drop),
            cuda.free_async(GPU1, stream, DevicePtr(0x7000)),
            cuda.stream_query(GPU1, stream).map(drop),
            cuda.stream_is_capturing(GPU1, stream).map(drop),
            cuda.stream_wait(GPU1, stream, RawEvent(8)),
            cuda.event_record(GPU1, RawEvent(8), stream),
        ]
    }
}

const ON_STREAMS: [(&str, u32); 6] = [
    ("cuMemAllocAsync", GLOBAL),
    ("cuMemFreeAsync", GLOBAL),
    ("cuStreamQuery", RELAXED),
    ("cuStreamIsCapturing", GLOBAL),
    ("cuStreamWaitEvent", GLOBAL),
    ("cuEventRecord", GLOBAL),
];

#[test]
fn d2_a_call_that_names_a_stream_leaves_the_current_context_unseen() {
    let cuda = opened();
    for foreign in [0, 0xf0] {
        fake::with(|state| (state.current, state.looked) = (foreign, 0));
        for result in each_on(&cuda, RawStream(0x50)) {
            result.unwrap();
        }
        assert_eq!(seen(), ON_STREAMS.map(|(call, mode)| (call, foreign, mode)));
        assert_eq!(fake::with(|state| (state.looked, state.capture_mode)), (0, GLOBAL));
    }
}

#[test]
fn z3_what_is_done_beside_captures_is_forbidden_by_none() {
    let cuda = opened();
    let mut results = Vec::new();
    cuda.beside_captures(&mut || results.extend(each_on(&cuda, RawStream(0x50))));
    assert!(results.iter().all(Result::is_ok) && results.len() == ON_STREAMS.len());
    assert_eq!(seen(), ON_STREAMS.map(|(call, _)| (call, 0, RELAXED)));
    assert_eq!(fake::with(|state| state.capture_mode), GLOBAL);
}

#[test]
fn d2_a_driver_that_insists_on_a_current_context_is_given_one() {
    let cuda = opened();
    fake::with(|state| state.insists = true);
    for result in each_on(&cuda, RawStream(0x50)) {
        result.unwrap();
    }
    let expected = ON_STREAMS.map(|(call, mode)| {
        [
            (call, 0, mode),
            ("cuCtxSetCurrent", 0, GLOBAL),
            (call, primary(1), mode),
            ("cuCtxSetCurrent", primary(1), GLOBAL),
        ]
    });
    assert_eq!(seen(), expected.as_flattened());
    assert_eq!(fake::with(|state| (state.current, state.capture_mode)), (0, GLOBAL));
}

#[test]
fn d2_the_default_streams_mean_those_of_the_current_context() {
    let cuda = opened();
    for stream in [0, 1, 2] {
        for result in each_on(&cuda, RawStream(stream)) {
            result.unwrap();
        }
        let calls = seen().into_iter().filter(|(call, _, _)| *call != "cuCtxSetCurrent");
        assert!(calls.eq(ON_STREAMS.map(|(call, mode)| (call, primary(1), mode))));
    }
}

#[test]
fn d2_a_stream_of_a_device_that_is_not_open_is_refused_without_a_call() {
    let cuda = cuda();
    for result in each_on(&cuda, RawStream(0x50)) {
        assert_eq!(result.unwrap_err().status.code(), 201);
    }
    assert_eq!(seen(), []);
}

#[test]
fn d2_a_context_that_went_meanwhile_leaves_none_current() {
    let cuda = opened();
    fake::with(|state| (state.current, state.gone) = (0xf0, Some(0xf0)));
    record(&cuda, GPU1).unwrap();
    assert_eq!(fake::with(|state| state.current), 0);
}

#[test]
fn d2_the_primary_context_is_retained_from_the_first_open_to_the_last_close() {
    let cuda = cuda();
    assert_eq!(cuda.open(GPU1), Ok(RawContext(primary(1) as u64)));
    assert_eq!(cuda.open(GPU1), Ok(RawContext(primary(1) as u64)));
    assert_eq!(fake::with(|state| state.retained), 1);
    close(&cuda, GPU1).unwrap();
    assert_eq!(cuda.allocate(GPU1, 1), Ok(DevicePtr(0x7000)));
    close(&cuda, GPU1).unwrap();
    assert_eq!(fake::with(|state| state.retained), 0);
}

#[test]
fn d2_a_device_that_is_only_looked_at_has_no_context() {
    let cuda = Cuda::start(fake::api(&RUNNING), Version::NEEDED, true).unwrap();
    assert_eq!(cuda.open(GPU1), Ok(RawContext(0)));
    assert_eq!(cuda.facts(GPU1).unwrap().stream_priorities, 0..=0);
    assert_eq!(fake::with(|state| state.retained), 0);
    assert!(cuda.allocate(GPU1, 1).unwrap_err().to_string().contains("CUDA_ERROR_INVALID_CONTEXT"));
    // No NVML knows this device, so that a context is asked, and let go.
    assert!(cuda.memory(GPU1).is_ok());
    assert_eq!(fake::with(|state| (state.retained, state.current)), (0, 0));
    close(&cuda, GPU1).unwrap();
    assert!(close(&cuda, GPU1).is_err());
}

#[test]
fn a_device_that_is_not_open_is_refused_without_a_call() {
    let cuda = cuda();
    let error = cuda.allocate(GPU0, 1).unwrap_err();
    assert_eq!((error.status.code(), error.status.name()), (201, "CUDA_ERROR_INVALID_CONTEXT"));
    assert_eq!(close(&cuda, GPU0).unwrap_err().status.code(), 201);
    assert_eq!(seen(), []);
}

#[test]
fn d3_a_device_that_does_not_exist_is_named() {
    let error = cuda().open(DeviceId(7)).unwrap_err();
    assert_eq!((error.device, error.status), (DeviceId(7), Status::InvalidDevice));
}

#[test]
fn a_capture_on_another_thread_is_left_alone_by_what_is_not_submitted_to_a_stream() {
    let cuda = opened();
    fake::with(|state| state.current = primary(0));
    query(&cuda).unwrap();
    cuda.allocate(GPU0, 1).unwrap();
    record(&cuda, GPU0).unwrap();
    assert_eq!(
        seen(),
        [
            ("cuEventQuery", primary(0), RELAXED),
            ("cuMemAlloc", primary(0), RELAXED),
            ("cuEventRecord", primary(0), GLOBAL),
        ]
    );
    assert_eq!(fake::with(|state| state.capture_mode), GLOBAL);
}

#[test]
fn an_event_that_has_not_been_reached_is_pending() {
    let cuda = opened();
    assert_eq!(query(&cuda), Ok(Progress::Complete));
    fake::with(|state| state.result = 600);
    assert_eq!(query(&cuda), Ok(Progress::Pending));
}

#[test]
fn r6_the_first_sticky_error_of_a_device_is_remembered() {
    let cuda = opened();
    for (code, remembered) in [(2, None), (719, Some(719)), (700, Some(719)), (0, Some(719))] {
        fake::with(|state| state.result = code);
        assert_eq!(cuda.allocate(GPU0, 1).is_err(), code != 0);
        let last = cuda.last_error(GPU0).map(|error| error.status.code());
        assert_eq!(last, remembered);
    }
    let first = cuda.last_error(GPU0).unwrap();
    assert_eq!(first.to_string(), "cuMemAlloc failed on gpu0: CUDA_ERROR_LAUNCH_FAILED (719)");
    assert_eq!(cuda.last_error(GPU1), None);
}

#[test]
fn no_call_reaches_the_driver_once_the_process_exits() {
    static EXITING: AtomicBool = AtomicBool::new(false);
    let cuda = Cuda::start(fake::api(&EXITING), Version::NEEDED, false).unwrap();
    cuda.open(GPU0).unwrap();
    seen();
    EXITING.store(true, Relaxed);
    let refused = [
        cuda.allocate(GPU0, 1).map(drop),
        cuda.memory(GPU0).map(drop),
        cuda.facts(GPU0).map(drop),
        query(&cuda).map(drop),
        record(&cuda, GPU0),
        launch(&cuda, HostFunction::new(|| ())),
        close(&cuda, GPU0),
    ];
    for result in refused {
        assert_eq!(result.map_err(|error| error.status), Err(Status::Unavailable));
    }
    assert_eq!(cuda.processes(GPU0), None);
    assert_eq!(seen(), []);
    assert_eq!(fake::with(|state| state.retained), 1);
}

#[test]
fn a_host_function_runs_once_and_its_panic_stays_in_rust() {
    let cuda = opened();
    let ran = Arc::new(());
    for panics in [false, true] {
        let held = ran.clone();
        let function = HostFunction::new(move || {
            let _held = held;
            assert!(!panics, "caught");
        });
        launch(&cuda, function).unwrap();
        let (function, data) = fake::with(|state| state.launched.take()).unwrap();
        assert_eq!(Arc::strong_count(&ran), 2);
        // SAFETY: what was launched, called once.
        unsafe { function.unwrap()(data) };
        assert_eq!(Arc::strong_count(&ran), 1);
    }
}

#[test]
fn a_host_function_that_was_not_launched_is_dropped() {
    let cuda = opened();
    let held = Arc::new(());
    let function = held.clone();
    fake::with(|state| state.result = 400);
    let refused = launch(&cuda, HostFunction::new(move || drop(function)));
    assert_eq!(refused.unwrap_err().status, Status::InvalidHandle);
    assert_eq!(Arc::strong_count(&held), 1);
}

#[test]
fn existing_memory_cannot_become_write_combined() {
    let flags = HostFlags { write_combined: true };
    // SAFETY: the fake driver looks at no address.
    let refused = unsafe { opened().host_register(GPU0, std::ptr::null_mut(), 4096, flags) };
    assert_eq!(refused.unwrap_err().status, Status::NotSupported);
}

#[test]
fn facts_can_be_had_of_a_device_that_is_not_open_and_leave_no_context() {
    let sysfs = std::env::temp_dir().join(format!("bursar-cuda-sysfs-{}", std::process::id()));
    let folder = sysfs.join("bus/pci/devices/0000:4e:00.0");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("numa_node"), "1\n").unwrap();
    let cuda = cuda();
    let facts = cuda.describe_device(cuda.device(GPU1).unwrap(), &sysfs);
    std::fs::remove_dir_all(&sysfs).unwrap();

    let facts = facts.unwrap();
    assert_eq!(facts.name, "G");
    assert_eq!(facts.uuid.to_string(), "GPU-01010101-0101-0101-0101-010101010101");
    assert_eq!(facts.pci.unwrap().to_string(), "0000:4e:00.0");
    assert_eq!(facts.numa_node, NumaNode::new(1));
    assert_eq!(facts.total, Bytes::gib(80));
    assert_eq!(facts.stream_priorities, -5..=0);
    assert!(facts.capabilities.stream_ordered);
    assert_eq!(facts.capabilities.page_granularity, Some(Bytes::mib(2)));
    assert_eq!(fake::with(|state| (state.retained, state.current)), (0, 0));
}

#[test]
fn priorities_are_asked_for_once() {
    let cuda = opened();
    cuda.facts(GPU0).unwrap();
    seen();
    cuda.facts(GPU0).unwrap();
    assert_eq!(seen(), []);
}

#[test]
fn free_memory_can_be_had_of_a_device_that_is_not_open() {
    let info = cuda().memory(GPU1).unwrap();
    assert_eq!((info.free, info.total), (Bytes::gib(70), Bytes::gib(80)));
    assert_eq!(fake::with(|state| state.retained), 0);
}

#[test]
fn d1_no_device_and_a_driver_that_fails_are_different_answers() {
    let start = || Cuda::start(fake::api(&RUNNING), Version::NEEDED, false).unwrap_err();
    fake::with(|state| state.result = 100);
    assert!(matches!(start(), LoadError::NoDevice { .. }));
    fake::with(|state| state.result = 999);
    assert_eq!(start().to_string(), "the CUDA driver cannot be used: cuInit returned CUDA_ERROR_UNKNOWN (999)");
    fake::with(|state| (state.result, state.devices) = (0, 0));
    assert!(matches!(start(), LoadError::NoDevice { .. }));
}

#[test]
fn d1_a_sick_device_does_not_hide_the_others() {
    fake::with(|state| state.sick = Some(0));
    let cuda = cuda();
    assert_eq!(cuda.device_count(), 2);
    let error = cuda.facts(GPU0).unwrap_err();
    assert_eq!((error.call, error.status.code()), ("cuDeviceGet", 999));
    assert_eq!(cuda.open(GPU0), Err(error));
    assert!(cuda.facts(GPU1).is_ok());
}

#[test]
fn it_says_what_it_is() {
    let cuda = Cuda::start(fake::api(&RUNNING), Version { major: 13, minor: 0 }, false).unwrap();
    assert_eq!(cuda.describe(), "CUDA driver 13.0");
    assert!(!cuda.listens());
    assert!(format!("{cuda:?}").contains("devices: 2"));
}

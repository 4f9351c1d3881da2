//! Every conversion between the driver's types and Bursar's.

use crate::raw::Failure;
use crate::raw::sys::{
    CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_WRITECOMBINED, CU_MEMHOSTREGISTER_DEVICEMAP,
    CU_MEMHOSTREGISTER_PORTABLE, CUDA_ERROR_NOT_READY, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, CUcontext, CUevent, CUgraph,
    CUgraphExec, CUstream, CUstreamCaptureStatus, CUuuid,
};
use bursar_core::{
    DeviceId, DeviceUuid, DriverError, HostFlags, NumaNode, PciAddress, Progress, RawContext, RawEvent, RawGraph,
    RawGraphExec, RawStream, Status,
};
use std::ffi::{c_char, c_int, c_uint};
use std::path::{Path, PathBuf};

const _: () = assert!(size_of::<usize>() == size_of::<u64>(), "CUDA has 64-bit hosts only");

/// Returns whether a handle means a default stream, the legacy one (0 and 1) or that of the calling thread, rather than a
/// stream that was created. A default stream belongs to the current context of the thread.
pub(crate) const fn is_default_stream(stream: RawStream) -> bool {
    stream.0 <= RawStream::PER_THREAD.0
}

/// The codes after which every further call of the process fails: those for which the manual says that the process (or, for
/// an assertion, the context) can no longer be used, and the two that report an uncorrectable hardware failure.
const STICKY: [c_int; 15] = [
    214, // ECC_UNCORRECTABLE
    220, // NVLINK_UNCORRECTABLE
    226, // CONTAINED
    700, // ILLEGAL_ADDRESS
    702, // LAUNCH_TIMEOUT
    710, // ASSERT
    714, // HARDWARE_STACK_ERROR
    715, // ILLEGAL_INSTRUCTION
    716, // MISALIGNED_ADDRESS
    717, // INVALID_ADDRESS_SPACE
    718, // INVALID_PC
    719, // LAUNCH_FAILED
    721, // TENSOR_MEMORY_LEAK
    810, // MPS_CLIENT_TERMINATED
    911, // EXTERNAL_DEVICE
];

/// The statuses that stand for exactly one code.
const KNOWN: [Status; 10] = [
    Status::InvalidValue,
    Status::OutOfMemory,
    Status::Unavailable,
    Status::InvalidDevice,
    Status::InvalidHandle,
    Status::AlreadyRegistered,
    Status::NotRegistered,
    Status::NotSupported,
    Status::Capturing,
    Status::IllegalAddress,
];

/// Returns the status of a driver's code. The code and its name are always the driver's own; `name` is called where Bursar
/// has no status of its own for the code.
pub(crate) fn status(code: c_int, name: impl FnOnce() -> Option<&'static str>) -> Status {
    let known = KNOWN.into_iter().find(|status| status.code() == code);
    known.unwrap_or_else(|| Status::Other {
        code,
        name: name().unwrap_or("an error without a name"),
        sticky: STICKY.contains(&code),
    })
}

pub(crate) fn error(device: DeviceId, failure: Failure, name: impl FnOnce() -> Option<&'static str>) -> DriverError {
    DriverError::new(failure.call, device, status(failure.code, name))
}

/// Returns the progress that a query reports: "not ready" is not a failure.
pub(crate) fn progress(result: Result<(), Failure>) -> Result<Progress, Failure> {
    match result {
        Ok(()) => Ok(Progress::Complete),
        Err(failure) if failure.code == CUDA_ERROR_NOT_READY => Ok(Progress::Pending),
        Err(failure) => Err(failure),
    }
}

/// Returns whether a stream is being captured, or was and its capture has failed. The legacy stream cannot be captured, but
/// reports that using it would pull it into the capture of a stream that synchronises with it.
pub(crate) fn is_capturing(result: Result<CUstreamCaptureStatus, Failure>) -> Result<bool, Failure> {
    match result {
        Ok(status) => Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE),
        Err(failure) if failure.code == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => Ok(true),
        Err(failure) => Err(failure),
    }
}

/// Returns the handle of a stream, as every other library in the process has it: 1 and 2 are the driver's own handles of the
/// legacy and the per-thread default stream.
pub(crate) fn stream(raw: RawStream) -> CUstream {
    raw.0 as CUstream
}

pub(crate) fn raw_stream(stream: CUstream) -> RawStream {
    RawStream(stream as u64)
}

pub(crate) fn event(raw: RawEvent) -> CUevent {
    raw.0 as CUevent
}

pub(crate) fn raw_event(event: CUevent) -> RawEvent {
    RawEvent(event as u64)
}

pub(crate) fn graph(raw: RawGraph) -> CUgraph {
    raw.0 as CUgraph
}

pub(crate) fn raw_graph(graph: CUgraph) -> RawGraph {
    RawGraph(graph as u64)
}

pub(crate) fn graph_exec(raw: RawGraphExec) -> CUgraphExec {
    raw.0 as CUgraphExec
}

pub(crate) fn raw_graph_exec(graph: CUgraphExec) -> RawGraphExec {
    RawGraphExec(graph as u64)
}

pub(crate) fn raw_context(context: CUcontext) -> RawContext {
    RawContext(context as u64)
}

pub(crate) fn size(bytes: u64) -> usize {
    bytes as usize
}

pub(crate) fn host_alloc_flags(flags: HostFlags) -> c_uint {
    let write_combined = if flags.write_combined { CU_MEMHOSTALLOC_WRITECOMBINED } else { 0 };
    CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | write_combined
}

/// Returns the flags for registering memory; `None` for write-combined memory, which existing memory cannot become.
pub(crate) fn host_register_flags(flags: HostFlags) -> Option<c_uint> {
    (!flags.write_combined).then_some(CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP)
}

pub(crate) fn uuid(uuid: CUuuid) -> DeviceUuid {
    DeviceUuid(uuid.bytes)
}

/// Returns the text before the first zero.
pub(crate) fn text(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().map(|&c| c as u8).take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the address whose parts the driver reports; `None` where one of them is out of range.
pub(crate) fn pci(domain: c_int, bus: c_int, device: c_int) -> Option<PciAddress> {
    Some(PciAddress {
        domain: u32::try_from(domain).ok()?,
        bus: u8::try_from(bus).ok()?,
        device: u8::try_from(device).ok()?,
    })
}

/// Returns the file in which the kernel reports the node of a PCI device.
pub(crate) fn numa_path(sysfs: &Path, pci: PciAddress) -> PathBuf {
    sysfs.join(format!("bus/pci/devices/{pci}/numa_node"))
}

/// Parses the kernel's report of a node, which is negative where it is unknown.
pub(crate) fn numa_node(text: &str) -> NumaNode {
    text.trim().parse().map_or(NumaNode::UNKNOWN, NumaNode::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unnamed() -> Option<&'static str> {
        panic!("a known code needs no name from the driver")
    }

    #[test]
    fn every_known_code_keeps_its_number_and_name() {
        for (code, name, expected) in [
            (1, "CUDA_ERROR_INVALID_VALUE", Status::InvalidValue),
            (2, "CUDA_ERROR_OUT_OF_MEMORY", Status::OutOfMemory),
            (4, "CUDA_ERROR_DEINITIALIZED", Status::Unavailable),
            (101, "CUDA_ERROR_INVALID_DEVICE", Status::InvalidDevice),
            (400, "CUDA_ERROR_INVALID_HANDLE", Status::InvalidHandle),
            (700, "CUDA_ERROR_ILLEGAL_ADDRESS", Status::IllegalAddress),
            (712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", Status::AlreadyRegistered),
            (713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", Status::NotRegistered),
            (801, "CUDA_ERROR_NOT_SUPPORTED", Status::NotSupported),
            (900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", Status::Capturing),
        ] {
            let status = status(code, unnamed);
            assert_eq!(status, expected);
            assert_eq!((status.code(), status.name()), (code, name));
        }
    }

    #[test]
    fn other_codes_are_named_by_the_driver() {
        let status = status(999, || Some("CUDA_ERROR_UNKNOWN"));
        assert_eq!((status.code(), status.name()), (999, "CUDA_ERROR_UNKNOWN"));
        assert!(!super::status(123_456, || None).name().is_empty());
    }

    #[test]
    fn r6_sticky_codes_are_those_the_process_cannot_recover_from() {
        let sticky: Vec<c_int> = (0..1000).filter(|&code| status(code, || None).is_sticky()).collect();
        assert_eq!(sticky, STICKY);
    }

    #[test]
    fn r6_a_device_in_exclusive_use_is_not_lost() {
        assert!(!status(46, || None).is_sticky());
    }

    #[test]
    fn an_error_says_call_device_code_and_name() {
        let failure = Failure { call: "cuEventRecord", code: 709 };
        let error = error(DeviceId(3), failure, || Some("CUDA_ERROR_CONTEXT_IS_DESTROYED"));
        assert_eq!(error.to_string(), "cuEventRecord failed on gpu3: CUDA_ERROR_CONTEXT_IS_DESTROYED (709)");
    }

    #[test]
    fn work_that_is_not_ready_is_pending() {
        let failed = |code| Err(Failure { call: "", code });
        assert_eq!(progress(Ok(())), Ok(Progress::Complete));
        assert_eq!(progress(failed(600)), Ok(Progress::Pending));
        assert_eq!(progress(failed(700)), Err(Failure { call: "", code: 700 }));
    }

    #[test]
    fn r5_a_stream_counts_as_captured_until_its_capture_has_ended() {
        let failed = |code| Err(Failure { call: "", code });
        for (status, captured) in [(0, false), (1, true), (2, true)] {
            assert_eq!(is_capturing(Ok(CUstreamCaptureStatus(status))), Ok(captured));
        }
        assert_eq!(is_capturing(failed(906)), Ok(true));
        assert_eq!(is_capturing(failed(400)), Err(Failure { call: "", code: 400 }));
    }

    #[test]
    fn handles_survive_the_way_there_and_back() {
        for word in [1, 2, 0x7f00_dead_beef] {
            assert_eq!(raw_stream(stream(RawStream(word))), RawStream(word));
            assert_eq!(raw_event(event(RawEvent(word))), RawEvent(word));
        }
        assert_eq!(stream(RawStream::LEGACY) as usize, 1);
        assert_eq!(stream(RawStream::PER_THREAD) as usize, 2);
    }

    #[test]
    fn n2_pinned_memory_is_portable_and_mapped() {
        assert_eq!(host_alloc_flags(HostFlags::default()), 0b011);
        assert_eq!(host_alloc_flags(HostFlags { write_combined: true }), 0b111);
        assert_eq!(host_register_flags(HostFlags::default()), Some(0b011));
        assert_eq!(host_register_flags(HostFlags { write_combined: true }), None);
    }

    #[test]
    fn d3_identity_is_read_as_the_driver_writes_it() {
        let bytes = [0x80, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xff];
        assert_eq!(uuid(CUuuid { bytes }), DeviceUuid(bytes));
        assert_eq!(pci(0, 0x4e, 0).unwrap().to_string(), "0000:4e:00.0");
        assert_eq!(pci(0x1_0000, 1, 0).unwrap().to_string(), "10000:01:00.0");
        assert_eq!(pci(0, 256, 0), None);
        assert_eq!(pci(-1, 0, 0), None);
    }

    #[test]
    fn a_name_ends_at_its_first_zero() {
        let mut chars = [0; 8];
        for (to, from) in chars.iter_mut().zip(*b"H200\0x") {
            *to = from as c_char;
        }
        assert_eq!(text(&chars), "H200");
        assert_eq!(text(&chars[..3]), "H20");
    }

    #[test]
    fn d5_a_node_the_kernel_does_not_know_is_unknown() {
        let pci = pci(0, 0x4e, 0).unwrap();
        let path = numa_path(Path::new("/fixture/sys"), pci);
        assert_eq!(path, Path::new("/fixture/sys/bus/pci/devices/0000:4e:00.0/numa_node"));
        assert_eq!(numa_node("1\n"), NumaNode::new(1));
        assert_eq!(numa_node("-1\n"), NumaNode::UNKNOWN);
        assert_eq!(numa_node(""), NumaNode::UNKNOWN);
    }
}

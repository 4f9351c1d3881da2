//! Files in memory that carry the bytes of device memory from one process to another, and say what they are.
#![allow(unsafe_code)]

use crate::status::{CUresult, CallResult};
use bursar_core::DeviceUuid;
use std::ffi::c_int;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::os::unix::fs::MetadataExt;

/// The size of a description.
const DESCRIPTION: usize = 32;
const MAGIC: &[u8; 8] = b"bursarCU";

/// The memory that a file has the bytes of: its device and its size. It is written behind the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Description {
    pub(crate) device: DeviceUuid,
    pub(crate) bytes: u64,
}

impl Description {
    pub(crate) fn to_bytes(self) -> [u8; DESCRIPTION] {
        let mut all = [0; DESCRIPTION];
        all[..8].copy_from_slice(MAGIC);
        all[8..24].copy_from_slice(&self.device.0);
        all[24..].copy_from_slice(&self.bytes.to_le_bytes());
        all
    }

    pub(crate) fn from_bytes(all: &[u8; DESCRIPTION]) -> Option<Self> {
        let (magic, rest) = all.split_first_chunk::<8>()?;
        let (device, rest) = rest.split_first_chunk::<16>()?;
        let bytes = u64::from_le_bytes(*rest.first_chunk()?);
        (magic == MAGIC).then_some(Self { device: DeviceUuid(*device), bytes })
    }
}

/// The file system of a file, and its number there.
pub(crate) type FileIdentity = (u64, u64);

/// Returns the status of a failure of the system.
fn failed(_: io::Error) -> CUresult {
    CUresult::CUDA_ERROR_OPERATING_SYSTEM
}

/// Makes a file with room for the bytes of memory, and its description behind them.
pub(crate) fn create(description: Description) -> CallResult<File> {
    // SAFETY: the name is ended by a zero; the flag exists.
    let raw = unsafe { libc::memfd_create(c"bursar-libcuda".as_ptr(), libc::MFD_CLOEXEC) };
    if raw < 0 {
        return Err(CUresult::CUDA_ERROR_OPERATING_SYSTEM);
    }
    // SAFETY: just made, and nobody else has it.
    let mut file = unsafe { File::from_raw_fd(raw) };
    file.seek(SeekFrom::Start(description.bytes)).map_err(failed)?;
    file.write_all(&description.to_bytes()).map_err(failed)?;
    Ok(file)
}

/// Returns a file descriptor of its own for whoever a file is exported to.
pub(crate) fn export(file: &File) -> CallResult<c_int> {
    Ok(file.try_clone().map_err(failed)?.into_raw_fd())
}

/// Returns the file of a descriptor that a program passed, which stays the program's.
pub(crate) fn import(descriptor: c_int) -> CallResult<File> {
    // SAFETY: a number that is no descriptor is refused.
    let raw = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 0) };
    if raw < 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: just made, and nobody else has it.
    Ok(unsafe { File::from_raw_fd(raw) })
}

/// Opens a file of another process, as long as that lives.
pub(crate) fn open(process: u32, descriptor: c_int) -> CallResult<File> {
    let path = format!("/proc/{process}/fd/{descriptor}");
    let file = File::options().read(true).write(true).open(path);
    file.map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)
}

/// Returns the descriptor by which another process finds a file.
pub(crate) fn descriptor(file: &File) -> c_int {
    file.as_raw_fd()
}

/// Returns what tells a file from every other that exists.
pub(crate) fn identity(file: &File) -> CallResult<FileIdentity> {
    let metadata = file.metadata().map_err(failed)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Reads the description of a file. Other files have none.
pub(crate) fn describe(mut file: &File) -> CallResult<Description> {
    let mut all = [0; DESCRIPTION];
    let found = file
        .seek(SeekFrom::End(-(DESCRIPTION as i64)))
        .and_then(|at| file.read_exact(&mut all).map(|()| at))
        .ok()
        .and_then(|at| Description::from_bytes(&all).filter(|description| description.bytes == at));
    found.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k3_a_file_says_what_memory_it_has_and_others_are_refused() {
        let description = Description { device: DeviceUuid([7; 16]), bytes: 4 << 20 };
        let file = create(description).expect("a file in memory");
        assert_eq!(describe(&file), Ok(description));
        let again = import(export(&file).expect("a descriptor")).expect("the same file");
        assert_eq!(describe(&again), Ok(description));
        again.set_len(100).expect("a file");
        assert_eq!(describe(&file), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
        let null = File::open("/dev/null").expect("every system has it");
        assert_eq!(describe(&null), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
        assert!(import(-1).is_err());
        assert!(open(std::process::id(), -1).is_err());
    }
}

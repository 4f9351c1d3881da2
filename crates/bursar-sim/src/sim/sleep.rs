//! Memory that sleeps: what the layers above note of it, and whether its contents are there again when it wakes.

use super::Sim;
use super::active_call::ActiveCall;
use crate::Executor;
use crate::call_log::CallArguments;
use crate::operation::CallResult;
use bursar_core::{DeviceId, DevicePtr, DriverResult, Note, Status};
use std::ops::Range;

/// The number of bytes that are read at a time for a checksum.
const STEP: usize = 64 << 10;

impl Sim {
    /// Records a note of a layer above about memory that sleeps.
    #[track_caller]
    pub(super) fn note_sleep(
        &self,
        name: &'static str,
        device: DeviceId,
        ptr: DevicePtr,
        bytes: u64,
        note: Note,
    ) -> DriverResult<()> {
        let arguments = CallArguments::default().at(ptr.0).of(bytes);
        self.call(name, device, arguments, |active| {
            let end = ptr.0.checked_add(bytes).ok_or(Status::InvalidValue)?;
            active.note_sleep(note, ptr.0..end)
        })
    }
}

impl ActiveCall<'_> {
    fn note_sleep(&mut self, note: Note, range: Range<u64>) -> CallResult<()> {
        let (device, op) = (self.device(), self.call.operation(Executor::Host));
        let sum = if matches!(note, Note::Saved { .. }) { self.checksum(range.clone()) } else { 0 };
        let Some(oracle) = &mut self.oracle else { return Ok(()) };
        match note {
            Note::Asleep { .. } => oracle.record_asleep(device, range),
            Note::Saved { .. } => oracle.record_saved(device, range, sum),
            Note::Abandoned { .. } => oracle.record_abandoned(device, range, op),
            _ => {
                for (range, sum) in oracle.record_awake(device, range, op) {
                    let found = self.checksum(range.clone());
                    if let Some(oracle) = self.oracle.as_mut().filter(|_| found != sum) {
                        oracle.report_lost(device, range, op);
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns a checksum of the bytes in a range as they are now.
    fn checksum(&mut self, range: Range<u64>) -> u64 {
        let (mut sum, mut at, mut buffer) = (0u64, range.start, vec![0; STEP]);
        while at < range.end {
            let len = usize::try_from(range.end - at).map_or(STEP, |left| left.min(STEP));
            buffer[..len].fill(0);
            self.read(at, &mut buffer[..len]);
            for word in buffer[..len].chunks(8) {
                let mut bytes = [0; 8];
                bytes[..word.len()].copy_from_slice(word);
                sum = (sum ^ u64::from_le_bytes(bytes)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
            }
            at += len as u64;
        }
        sum
    }
}

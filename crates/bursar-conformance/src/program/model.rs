//! Computes the expected outcome of a program: runs it in host memory, one operation after the other.

use super::op::{BlockRange, HostOffset, Op};
use super::outcome::{CallResult, ProgramOutcome, read_backs};
use super::{DriverProgram, HostKind};

/// The state that a program can observe, with nothing ever in flight.
struct Model {
    blocks: Vec<Option<Block>>,
    pageable: Vec<u8>,
    pinned: Vec<u8>,
    host_functions: Vec<Vec<u32>>,
}

#[derive(Clone)]
struct Block {
    bytes: Vec<u8>,
    is_written: bool,
}

pub(super) fn run(program: &DriverProgram) -> ProgramOutcome {
    let mut model = Model {
        blocks: vec![None; program.blocks],
        pageable: program.host_bytes(HostKind::Pageable),
        pinned: program.host_bytes(HostKind::Pinned),
        host_functions: vec![Vec::new(); program.shape.streams],
    };
    let results = program.ops.iter().map(|op| model.perform(op)).collect();
    let read_backs = read_backs(&program.ops, |offset, bytes| model.host(offset, bytes).to_vec());
    let blocks = model.blocks.into_iter().enumerate();
    let written = blocks.filter_map(|(number, block)| Some((number, block.filter(|block| block.is_written)?.bytes)));
    ProgramOutcome { results, read_backs, blocks: written.collect(), host_functions: model.host_functions }
}

impl Model {
    fn perform(&mut self, op: &Op) -> CallResult {
        match *op {
            Op::Allocate { block, bytes, .. } => {
                let bytes = vec![0; bytes as usize];
                self.blocks[block] = Some(Block { bytes, is_written: false });
            }
            Op::Free { block, .. } => self.blocks[block] = None,
            Op::Fill { range, pattern, .. } => {
                let pattern = pattern.bytes();
                let pattern = pattern.as_ref();
                self.range(range).chunks_exact_mut(pattern.len()).for_each(|unit| unit.copy_from_slice(pattern));
            }
            Op::Upload { range, from, .. } => {
                let bytes = self.host(from, range.bytes as usize).to_vec();
                self.range(range).copy_from_slice(&bytes);
            }
            Op::ReadBack { range, to, .. } => {
                let bytes = self.range(range).to_vec();
                self.host(to, bytes.len()).copy_from_slice(&bytes);
            }
            Op::Copy { to, from, .. } => {
                let bytes = self.range(from).to_vec();
                self.range(to).copy_from_slice(&bytes);
            }
            Op::Add { to, from, .. } => {
                let bytes = self.range(from).to_vec();
                add(self.range(to), &bytes);
            }
            Op::Host { number, stream } | Op::Hold { number, stream } => self.host_functions[stream].push(number),
            Op::Query { expected, .. } | Op::QueryEvent { expected, .. } => {
                return expected.map_or(CallResult::Unspecified, CallResult::Progress);
            }
            Op::Refused(refusal) => return CallResult::Failed(refusal.status()),
            Op::Open | Op::Record { .. } | Op::Wait { .. } | Op::Synchronize { .. } | Op::SynchronizeEvent { .. } => {}
        }
        CallResult::Done
    }

    /// Returns a range of a live block, and marks the block as written: programs read only blocks that were written.
    fn range(&mut self, range: BlockRange) -> &mut [u8] {
        let block = self.blocks[range.block].as_mut().expect("programs use live blocks");
        block.is_written = true;
        &mut block.bytes[range.at as usize..][..range.bytes as usize]
    }

    fn host(&mut self, offset: HostOffset, bytes: usize) -> &mut [u8] {
        let memory = match offset.host {
            HostKind::Pageable => &mut self.pageable,
            HostKind::Pinned => &mut self.pinned,
        };
        &mut memory[offset.at..][..bytes]
    }
}

/// Adds each byte of `from` to one of `to`, as the kernel of [`Op::Add`] does.
pub(super) fn add(to: &mut [u8], from: &[u8]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = to.wrapping_add(*from);
    }
}

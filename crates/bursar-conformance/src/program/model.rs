//! What must come of a program: it is run in memory, one operation after the other.

use super::op::{Op, Part, Place};
use super::outcome::{Answer, Outcome, read_backs};
use super::{Host, Program};

/// Everything a program can see, with nothing ever in flight.
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

pub(super) fn run(program: &Program) -> Outcome {
    let mut model = Model {
        blocks: vec![None; program.blocks],
        pageable: program.host_bytes(Host::Pageable),
        pinned: program.host_bytes(Host::Pinned),
        host_functions: vec![Vec::new(); program.shape.streams],
    };
    let answers = program.ops.iter().map(|op| model.perform(op)).collect();
    let read_backs = read_backs(&program.ops, |place, bytes| model.host(place, bytes).to_vec());
    let blocks = model.blocks.into_iter().enumerate();
    let written = blocks.filter_map(|(number, block)| Some((number, block.filter(|block| block.is_written)?.bytes)));
    Outcome { answers, read_backs, blocks: written.collect(), host_functions: model.host_functions }
}

impl Model {
    fn perform(&mut self, op: &Op) -> Answer {
        match *op {
            Op::Allocate { block, bytes, .. } => {
                let bytes = vec![0; bytes as usize];
                self.blocks[block] = Some(Block { bytes, is_written: false });
            }
            Op::Free { block, .. } => self.blocks[block] = None,
            Op::Fill { part, pattern, .. } => {
                let pattern = pattern.bytes();
                let pattern = pattern.as_ref();
                self.part(part).chunks_exact_mut(pattern.len()).for_each(|unit| unit.copy_from_slice(pattern));
            }
            Op::Upload { part, from, .. } => {
                let bytes = self.host(from, part.bytes as usize).to_vec();
                self.part(part).copy_from_slice(&bytes);
            }
            Op::ReadBack { part, to, .. } => {
                let bytes = self.part(part).to_vec();
                self.host(to, bytes.len()).copy_from_slice(&bytes);
            }
            Op::Copy { to, from, .. } => {
                let bytes = self.part(from).to_vec();
                self.part(to).copy_from_slice(&bytes);
            }
            Op::Add { to, from, .. } => {
                let bytes = self.part(from).to_vec();
                add(self.part(to), &bytes);
            }
            Op::Host { number, stream } | Op::Hold { number, stream } => self.host_functions[stream].push(number),
            Op::Query { answer, .. } | Op::QueryEvent { answer, .. } => {
                return answer.map_or(Answer::Open, Answer::Said);
            }
            Op::Refused(refusal) => return Answer::Failed(refusal.status()),
            Op::Open | Op::Record { .. } | Op::Wait { .. } | Op::Synchronize { .. } | Op::SynchronizeEvent { .. } => {}
        }
        Answer::Done
    }

    /// A part of a live block, which is written from here on: what is read has been written before.
    fn part(&mut self, part: Part) -> &mut [u8] {
        let block = self.blocks[part.block].as_mut().expect("programs use live blocks");
        block.is_written = true;
        &mut block.bytes[part.at as usize..][..part.bytes as usize]
    }

    fn host(&mut self, place: Place, bytes: usize) -> &mut [u8] {
        let memory = match place.host {
            Host::Pageable => &mut self.pageable,
            Host::Pinned => &mut self.pinned,
        };
        &mut memory[place.at..][..bytes]
    }
}

/// What the kernel of [`Op::Add`] does.
pub(super) fn add(to: &mut [u8], from: &[u8]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = to.wrapping_add(*from);
    }
}

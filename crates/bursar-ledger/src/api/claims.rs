//! The claims that stand against a charge which was refused.

use super::LedgerAccount;
use crate::attachment::{Attachment, LockWait};
use crate::book::{LockedBook, NodeKey, QueueRequest, RESERVATION, TENANT};
use crate::format::node;
use crate::storage::MappedWords;
use bursar_core::{Bytes, Claim, Claims, WaitingClaim};
use std::cmp::Reverse;
use std::time::Duration;

/// The longest that an explanation waits for the lock. Without it there is none.
const WITHIN: Duration = Duration::from_millis(100);

/// The obstacle to a charge: the node whose memory is used up, and whether some is left that is kept for those who wait.
struct Obstacle {
    node: usize,
    is_queue: bool,
}

impl LedgerAccount {
    /// Returns who stands against a charge of `bytes`; `None` where the lock is not available.
    #[cold]
    pub(super) fn read_claims(&self, bytes: Bytes) -> Option<Claims> {
        let attachment = &*self.ledger.attachment;
        let read = |locked: &mut LockedBook<'_, MappedWords>| {
            let obstacle = obstacle(locked, self.key, bytes.get())?;
            let is_of_all = obstacle.node == 0;
            Some(Claims {
                processes: processes(attachment, locked, obstacle.node),
                waiting: if obstacle.is_queue { waiting(attachment, locked) } else { Vec::new() },
                unmanaged: Bytes(if is_of_all { locked.unmanaged() } else { 0 }),
            })
        };
        attachment.with_lock(LockWait::within(WITHIN), read).ok().flatten()
    }
}

fn obstacle(locked: &LockedBook<'_, MappedWords>, key: NodeKey, bytes: u64) -> Option<Obstacle> {
    if !locked.is_current(key) {
        return None;
    }
    let (node, parent) = (key.node, locked.parent(key.node));
    Some(match (locked.field(node, node::KIND), locked.field(parent, node::KIND)) {
        (RESERVATION, _) => Obstacle { node, is_queue: false },
        (_, TENANT) if locked.available_to_tenant(parent) < bytes => Obstacle { node: parent, is_queue: false },
        (_, TENANT) => Obstacle { node: 0, is_queue: locked.available() >= bytes },
        _ => Obstacle { node: parent, is_queue: false },
    })
}

/// Returns the processes that have something below a node, the one with the most first.
fn processes(attachment: &Attachment, locked: &LockedBook<'_, MappedWords>, below: usize) -> Vec<Claim> {
    let own = attachment.book.slot();
    let claim = |(slot, (held, set_aside)): (usize, (u64, u64))| {
        let (pid, name) = attachment.name_of(slot);
        let (labels, held, set_aside) = (locked.labels_of(slot), Bytes(held), Bytes(set_aside));
        Claim { pid, name, labels, held, set_aside, is_own: slot == own }
    };
    let sums = locked.sums_by_process_below(below).into_iter().enumerate();
    let mut claims: Vec<Claim> = sums.filter(|(_, sums)| *sums != (0, 0)).map(claim).collect();
    claims.sort_by_key(|claim| Reverse(claim.bytes()));
    claims
}

/// Returns the requests that wait, in the order of service.
pub(super) fn waiting(attachment: &Attachment, locked: &LockedBook<'_, MappedWords>) -> Vec<WaitingClaim> {
    let claim = |(request, slot): (QueueRequest, usize)| {
        let (pid, name) = attachment.name_of(slot);
        WaitingClaim { pid, name, bytes: Bytes(request.bytes) }
    };
    locked.queue().into_iter().map(claim).collect()
}

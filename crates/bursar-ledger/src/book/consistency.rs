//! Checking that the figures of a ledger agree with each other.

use super::{ACCOUNT, BYTES_MAX, FREE, LockedBook, RESERVATION, ROOT, TENANT};
use crate::format::{Words, counter, header, node, process, waiter};

impl<W: Words> LockedBook<'_, W> {
    /// Returns a description of the first contradiction between the figures, if there is one.
    pub fn find_inconsistency(&self) -> Option<String> {
        self.check_every_word();
        if let Some(at) = self.damage() {
            return Some(format!("{} holds no valid value", self.book.layout.name_of(at)));
        }
        let high = self.get(header::NODES_HIGH) as usize;
        if self.field(0, node::KIND) != ROOT || high > self.book.layout.nodes {
            return Some("its first node is not the device".to_owned());
        }
        let waiting = (0..self.book.layout.waiters).filter(|&entry| {
            self.get(self.book.layout.waiter_at(entry) + waiter::STATE) & waiter::STATES == waiter::WAITING
        });
        if waiting.count() as u64 != self.get(header::WAITING) {
            return Some("its queue does not have the length in its header".to_owned());
        }
        let children = self.totals_of_children();
        let in_nodes = (0..self.book.layout.nodes).find_map(|node| self.inconsistency_at(node, high, children[node]));
        in_nodes.or_else(|| self.inconsistency_in_telemetry())
    }

    /// Reads every word in use, so that a damaged one is recorded. A damaged word of a row that was never used is found
    /// by whoever gets the row.
    fn check_every_word(&self) {
        let layout = self.book.layout;
        let of_header = [
            header::NODES_HIGH,
            header::PROCESSES_HIGH,
            header::WAITING,
            header::TICKET,
            header::UNMANAGED,
            header::JOURNAL,
        ];
        let of_processes = self.slots().flat_map(|slot| {
            let fields = (0..process::WORDS).filter(|&field| field != process::EVENTS);
            fields.map(move |field| layout.process_at(slot) + field)
        });
        let of_counters = layout.counters_at()..layout.counters_at() + counter::WORDS;
        let of_waiters = layout.waiter_at(0)..layout.waiter_at(layout.waiters);
        let of_refusals = layout.refusal_at(0)..layout.refusal_at(layout.refusals);
        let of_tables = of_counters.chain(of_processes).chain(of_waiters).chain(of_refusals);
        for at in of_header.into_iter().chain(of_tables) {
            self.get(at);
        }
        for node in self.nodes() {
            for field in (node::CLOSED..node::WORDS).filter(|&field| field != node::SETTLED) {
                self.field(node, field);
            }
            self.peek_balance(node);
            if self.field(node, node::KIND) != FREE {
                self.returned(node);
            }
        }
    }

    fn inconsistency_at(&self, node: usize, high: usize, children: u64) -> Option<String> {
        let kind = self.field(node, node::KIND);
        if kind == FREE {
            return None;
        }
        let parent = self.parent(node);
        let above = if parent < high { self.field(parent, node::KIND) } else { FREE };
        let fits = node < high
            && match kind {
                ROOT => node == 0,
                TENANT => parent == 0,
                ACCOUNT => matches!(above, TENANT | RESERVATION),
                RESERVATION => matches!(above, TENANT | RESERVATION) && parent != node,
                _ => false,
            };
        if !fits {
            return Some(format!("account {node} has no valid parent"));
        }
        let (balance, total) = (self.peek_balance(node), self.field(node, node::TOTAL));
        let agrees = match kind {
            ROOT | TENANT => total == children,
            // A process may have released more than it charged: the next decision about the node cuts that off.
            _ => total <= BYTES_MAX && balance <= total && children <= total,
        };
        (!agrees).then(|| format!("account {node} has {total} bytes, {balance} left and {children} in its children"))
    }
}

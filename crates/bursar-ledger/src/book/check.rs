//! Whether a ledger's figures agree with each other.

use super::{ACCOUNT, BYTES_MAX, Desk, FREE, RESERVATION, ROOT, TENANT};
use crate::format::{Words, header, node, process, waiter};

impl<W: Words> Desk<'_, W> {
    /// What does not agree, if something does not.
    pub fn contradiction(&self) -> Option<String> {
        self.look_at_every_word();
        if let Some(at) = self.damage() {
            return Some(format!("{} is no value", self.book.layout.name_of(at)));
        }
        let high = self.get(header::NODES_HIGH) as usize;
        if self.of(0, node::KIND) != ROOT || high > self.book.layout.nodes {
            return Some("its first node is not the device".to_owned());
        }
        let waiting = (0..self.book.layout.waiters).filter(|&entry| {
            self.get(self.book.layout.waiter_at(entry) + waiter::STATE) & waiter::STATES == waiter::WAITING
        });
        if waiting.count() as u64 != self.get(header::WAITING) {
            return Some("its queue is not as long as it says".to_owned());
        }
        (0..self.book.layout.nodes).find_map(|node| self.contradiction_at(node, high))
    }

    /// Finds any word in use that is damaged; one of a row that nobody had yet is found by whoever gets the row.
    fn look_at_every_word(&self) {
        let layout = self.book.layout;
        let of_header = [
            header::NODES_HIGH,
            header::PLACES_HIGH,
            header::WAITING,
            header::TICKET,
            header::UNMANAGED,
            header::JOURNAL,
        ];
        let of_processes = self.places().flat_map(|place| {
            let fields = (0..process::NAME + process::NAME_WORDS).filter(|&field| field != process::BELL);
            fields.map(move |field| layout.process_at(place) + field)
        });
        let of_waiters = layout.waiter_at(0)..layout.waiter_at(layout.waiters);
        for at in of_header.into_iter().chain(of_processes).chain(of_waiters) {
            self.get(at);
        }
        for node in self.nodes() {
            for field in (node::CLOSED..node::WORDS).filter(|&field| field != node::FOLDED) {
                self.of(node, field);
            }
            self.peek_left(node);
            if self.of(node, node::KIND) != FREE {
                self.returned(node);
            }
        }
    }

    fn contradiction_at(&self, node: usize, high: usize) -> Option<String> {
        let kind = self.of(node, node::KIND);
        if kind == FREE {
            return None;
        }
        let parent = self.parent(node);
        let above = if parent < high { self.of(parent, node::KIND) } else { FREE };
        let fits = node < high
            && match kind {
                ROOT => node == 0,
                TENANT => parent == 0,
                ACCOUNT => matches!(above, TENANT | RESERVATION),
                RESERVATION => matches!(above, TENANT | RESERVATION) && parent != node,
                _ => false,
            };
        if !fits {
            return Some(format!("account {node} is part of nothing"));
        }
        let parts = self.parts(node).map(|part| self.of(part, node::TOTAL)).fold(0, u64::saturating_add);
        let (left, total) = (self.peek_left(node), self.of(node, node::TOTAL));
        let agrees = match kind {
            ROOT | TENANT => total == parts,
            // A process may have given back more than it took: whoever decides about the node next cuts that off.
            _ => total <= BYTES_MAX && left <= total && parts <= total,
        };
        (!agrees).then(|| format!("account {node} has {total} bytes, {left} left and {parts} in its parts"))
    }
}

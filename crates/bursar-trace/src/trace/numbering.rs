//! Small dense numbers for the identifiers that a recording uses.

use super::AddressState;
use std::collections::HashMap;

/// Numbers identifiers in the order of their first appearance. Rows often repeat their neighbours, so the last lookup is
/// cached.
#[derive(Debug, Default)]
pub(crate) struct Numbering {
    names: Vec<u64>,
    numbers: HashMap<u64, u16, AddressState>,
    last: Option<(u64, u16)>,
}

impl Numbering {
    pub(crate) fn starting_with(name: u64) -> Self {
        let mut numbering = Self::default();
        numbering.number(name);
        numbering
    }

    /// Returns the number of `name`, giving it one if it has none; `None` when all numbers are used.
    pub(crate) fn number(&mut self, name: u64) -> Option<u16> {
        if let Some((last, number)) = self.last
            && last == name
        {
            return Some(number);
        }
        let number = match self.numbers.get(&name) {
            Some(&number) => number,
            None => {
                let number = u16::try_from(self.names.len()).ok()?;
                self.names.push(name);
                self.numbers.insert(name, number);
                number
            }
        };
        self.last = Some((name, number));
        Some(number)
    }

    pub(crate) fn into_names(self) -> Vec<u64> {
        self.names
    }
}

//! The advice that follows from a shortage.

use crate::{AllocTag, Bytes, Error, Shortage};
use std::fmt;

/// Advice on what would have had to be freed for a request to succeed, computed from the numbers of a [`Shortage`].
///
/// ```
/// use bursar_core::{Advice, Bytes, tag};
///
/// let advice = Advice::Free { tags: vec![tag!("weights"), tag!("kv-cache")], bytes: Bytes::gib(3) };
/// assert_eq!(advice.to_string(), "freeing `weights` and `kv-cache` (3 GiB) would have been enough");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// The request is larger than all memory there is.
    TooLarge,
    /// There is enough, but not in one piece.
    InPieces,
    /// Enough was freed already, and is available once the work that uses it has run.
    Wait,
    /// Freeing everything of these tags: of the smallest one that is enough alone, or of the largest ones together.
    Free {
        /// The tags.
        tags: Vec<AllocTag>,
        /// The bytes held for them.
        bytes: Bytes,
    },
    /// All listed holders together hold less than what was missing.
    Insufficient {
        /// The bytes that were missing.
        missing: Bytes,
        /// The bytes that they hold.
        listed: Bytes,
    },
    /// Nobody counts who holds what.
    Missing {
        /// The bytes that were missing.
        missing: Bytes,
    },
    /// The numbers could not be read.
    Unknown,
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => f.write_str("it is more than there is at all, so freeing cannot help"),
            Self::InPieces => f.write_str("there is enough, but not in one piece"),
            Self::Wait => f.write_str("waiting for the frees that are pending would have been enough"),
            Self::Free { tags, bytes } => {
                f.write_str("freeing ")?;
                for (at, tag) in tags.iter().enumerate() {
                    let comma = match at {
                        0 => "",
                        at if at + 1 == tags.len() => " and ",
                        _ => ", ",
                    };
                    write!(f, "{comma}`{tag}`")?;
                }
                write!(f, " ({bytes}) would have been enough")
            }
            Self::Insufficient { missing, listed } => {
                write!(f, "{missing} are missing, and the holders named hold only {listed}")
            }
            Self::Missing { missing } => write!(f, "{missing} are missing, and nobody counts who holds what"),
            Self::Unknown => f.write_str("what is missing is unknown"),
        }
    }
}

impl Shortage {
    /// Returns what would have had to be freed, as far as the numbers tell.
    pub fn advice(&self) -> Advice {
        let (requested, room, most) = match self.cause {
            Error::OutOfBudget { requested, remaining, limit } => (requested, Some(remaining), Some(limit)),
            Error::OutOfMemory { requested, free, total, .. } => (requested, Some(free), Some(total)),
            _ => (self.requested, self.free, self.total),
        };
        if most.is_some_and(|most| requested > most) {
            return Advice::TooLarge;
        }
        let Some(missing) = room.map(|room| requested.saturating_sub(room)) else { return Advice::Unknown };
        if missing == Bytes::ZERO {
            return Advice::InPieces;
        }
        if self.pending.is_some_and(|pending| pending >= missing) {
            return Advice::Wait;
        }
        let alone = self.holders.iter().filter(|holding| holding.bytes >= missing).min_by_key(|holding| holding.bytes);
        if let Some(holding) = alone {
            return Advice::Free { tags: vec![holding.tag], bytes: holding.bytes };
        }
        let (mut tags, mut bytes) = (Vec::new(), Bytes::ZERO);
        for holding in &self.holders {
            tags.push(holding.tag);
            bytes = bytes.saturating_add(holding.bytes);
            if bytes >= missing {
                return Advice::Free { tags, bytes };
            }
        }
        if tags.is_empty() { Advice::Missing { missing } } else { Advice::Insufficient { missing, listed: bytes } }
    }
}

#[cfg(test)]
mod tests {
    use super::super::shortage::tests::out_of_memory;
    use super::*;
    use crate::{DeviceId, DriverError, Holding, Status, tag};

    #[test]
    fn p4_advice_is_computed_from_the_numbers_of_the_cause() {
        let mut shortage = out_of_memory(600, 200);
        assert_eq!(shortage.advice(), Advice::Missing { missing: Bytes(400) });
        let hold = |name, bytes| Holding { tag: AllocTag::intern(name), bytes: Bytes(bytes), blocks: 1 };
        shortage.holders = vec![hold("one", 250), hold("two", 100)];
        assert_eq!(shortage.advice(), Advice::Insufficient { missing: Bytes(400), listed: Bytes(350) });
        shortage.holders.push(hold("three", 50));
        let tags = vec![tag!("one"), tag!("two"), tag!("three")];
        assert_eq!(shortage.advice(), Advice::Free { tags, bytes: Bytes(400) });
        assert!(shortage.to_string().ends_with("freeing `one`, `two` and `three` (400 B) would have been enough"));
        shortage.holders = vec![hold("most", 900), hold("exact", 400), hold("less", 399)];
        assert_eq!(shortage.advice(), Advice::Free { tags: vec![tag!("exact")], bytes: Bytes(400) });
        shortage.pending = Some(Bytes(400));
        assert_eq!(shortage.advice(), Advice::Wait);
    }

    #[test]
    fn p4_what_no_free_can_meet_is_said_to_be_so() {
        assert_eq!(out_of_memory(1001, 1000).advice(), Advice::TooLarge);
        assert_eq!(out_of_memory(500, 500).advice(), Advice::InPieces);
        let unreadable = Error::Driver(DriverError::new("cuMemAlloc", DeviceId(0), Status::OutOfMemory));
        let shortage = Shortage::new(unreadable, DeviceId(0), Bytes(1));
        assert_eq!(shortage.advice(), Advice::Unknown);
        assert!(format!("{shortage:#}").contains("free              unknown of unknown"));
    }
}

//! The kinds of memory that workers fit into.

use std::fmt;
use std::str::FromStr;

/// The kind of memory that workers fit into. On the command line it is the option `--pool`.
///
/// ```
/// use bursar::fit::MemoryKind;
///
/// assert_eq!("ram".parse(), Ok(MemoryKind::Ram));
/// assert_eq!(MemoryKind::Vram.to_string(), "VRAM");
/// let error = "disk".parse::<MemoryKind>().unwrap_err();
/// assert_eq!(error.to_string(), r#""disk" is no pool: the pools are ram, vram"#);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// The memory of the machine, which swaps when too much of it is used.
    Ram,
    /// The memory of its GPUs, which does not swap.
    Vram,
}

impl MemoryKind {
    /// Every kind.
    pub const ALL: [Self; 2] = [Self::Ram, Self::Vram];

    /// Returns the name that the kind is parsed from.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ram => "ram",
            Self::Vram => "vram",
        }
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ram => "RAM",
            Self::Vram => "VRAM",
        })
    }
}

/// The error of parsing a name that is no [`MemoryKind`].
///
/// ```
/// assert!("disk".parse::<bursar::fit::MemoryKind>().unwrap_err().to_string().contains("ram, vram"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no pool: the pools are {}", MemoryKind::ALL.map(MemoryKind::name).join(", "))]
pub struct UnknownMemoryKind {
    text: String,
}

impl FromStr for MemoryKind {
    type Err = UnknownMemoryKind;

    fn from_str(text: &str) -> Result<Self, UnknownMemoryKind> {
        let name = text.trim();
        let found = Self::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| UnknownMemoryKind { text: text.to_owned() })
    }
}

//! The kinds of memory that workers fit into.

use std::fmt;
use std::str::FromStr;

/// The memory that workers fit into.
///
/// ```
/// use bursar_fit::Pool;
///
/// assert_eq!("ram".parse(), Ok(Pool::Ram));
/// assert_eq!(Pool::Vram.to_string(), "VRAM");
/// assert_eq!("disk".parse::<Pool>().unwrap_err().to_string(), r#""disk" is no pool: the pools are ram, vram"#);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pool {
    /// The memory of the machine. Too much of it swaps.
    Ram,
    /// The memory of its GPUs. It does not swap.
    Vram,
}

impl Pool {
    /// Every pool there is.
    pub const ALL: [Self; 2] = [Self::Ram, Self::Vram];

    /// The name it is asked for by.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ram => "ram",
            Self::Vram => "vram",
        }
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ram => "RAM",
            Self::Vram => "VRAM",
        })
    }
}

/// A name that is no pool's.
///
/// ```
/// assert!("disk".parse::<bursar_fit::Pool>().unwrap_err().to_string().contains("ram, vram"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no pool: the pools are {}", Pool::ALL.map(Pool::name).join(", "))]
pub struct UnknownPool {
    text: String,
}

impl FromStr for Pool {
    type Err = UnknownPool;

    fn from_str(text: &str) -> Result<Self, UnknownPool> {
        let name = text.trim();
        let found = Self::ALL.into_iter().find(|pool| pool.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| UnknownPool { text: text.to_owned() })
    }
}

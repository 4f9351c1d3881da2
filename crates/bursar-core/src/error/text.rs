//! The texts of errors that take more than a line to write.

use super::{Error, LimitName, Shortage};
use crate::{Bytes, DeviceId};
use std::fmt;

/// An explanation that an error may have.
type Explanation = Option<Box<Shortage>>;

pub(super) fn show_out_of_budget(
    requested: &Bytes,
    remaining: &Bytes,
    limit: &Bytes,
    by: &Option<LimitName>,
    explanation: &Explanation,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    match by {
        Some(name) => write!(f, "over {name}: ")?,
        None => f.write_str("over budget: ")?,
    }
    show_requested(*requested, explanation, f)?;
    write!(f, "{remaining} of {limit} left")?;
    show_explanation(explanation, f)
}

pub(super) fn show_out_of_memory(
    device: &DeviceId,
    requested: &Bytes,
    free: &Bytes,
    total: &Bytes,
    explanation: &Explanation,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    write!(f, "{device} is out of memory: ")?;
    show_requested(*requested, explanation, f)?;
    write!(f, "{free} of {total} free")?;
    show_explanation(explanation, f)
}

/// Shows the size that was asked for, and what that takes of whoever refused, where it does not read the same: a pool
/// has part of it already, or blocks are rounded up.
fn show_requested(taken: Bytes, explanation: &Explanation, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match explanation.as_ref().map(|shortage| shortage.requested) {
        Some(requested) if requested.to_string() != taken.to_string() => {
            write!(f, "{requested} requested, which takes {taken} more; ")
        }
        Some(requested) => write!(f, "{requested} requested, "),
        None => write!(f, "{taken} requested, "),
    }
}

/// Shows the advice on the same line, or the whole explanation where that is asked for.
fn show_explanation(explanation: &Explanation, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match explanation {
        Some(shortage) if f.alternate() => write!(f, "\n{shortage}"),
        Some(shortage) => write!(f, "; {}", shortage.advice),
        None => Ok(()),
    }
}

/// Devices and why each cannot be used, on one line.
pub(super) struct EachCause<'a>(pub(super) &'a [(DeviceId, Error)]);

impl fmt::Display for EachCause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (device, cause)) in self.0.iter().enumerate() {
            write!(f, "{}{device}: {cause}", if at == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

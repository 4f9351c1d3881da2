//! Plans in words: the reasons for a plan, its overflow, and what would make one more worker fit.

use super::{Assignment, Candidate, MemoryKind, Overflow, Plan};
use bursar_core::Bytes;
use std::fmt;

/// The most candidates that are named one by one.
const NAMED_MAX: usize = 8;

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.device {
            Some(device) => fmt::Display::fmt(&device, f),
            None => f.pad("here"),
        }
    }
}

impl Plan {
    /// Returns two sentences: how many workers go where, and why that many.
    pub fn explanation(&self) -> String {
        format!("{} {}", self.outcome(), self.reason())
    }

    fn outcome(&self) -> String {
        let (want, workers) = (self.need.wanted(), self.workers);
        if self.overflow.is_some() {
            return format!("Not even one of {} fits into {}.", counted(want), self.memory);
        }
        let fit = match (workers, want) {
            (1, 1) => "The worker fits".to_owned(),
            (workers, want) if workers == want => format!("All {workers} workers fit"),
            (1, want) => format!("1 of {want} workers fits"),
            (workers, want) => format!("{workers} of {want} workers fit"),
        };
        let used = self
            .assignments
            .iter()
            .filter(|assignment| assignment.workers > 0 && assignment.candidate.device.is_some());
        let parts: Vec<_> =
            used.map(|assignment| format!("{} on {}", assignment.workers, assignment.candidate)).collect();
        match parts.len() {
            0 => format!("{fit} into {}.", self.memory),
            _ => format!("{fit}: {}.", listed(&parts)),
        }
    }

    fn reason(&self) -> String {
        let need = &self.need;
        let cost = match (need.fixed, need.per_worker) {
            (Bytes::ZERO, Bytes::ZERO) => "nothing is said to be needed".to_owned(),
            (Bytes::ZERO, each) => format!("a worker needs {each}"),
            (fixed, Bytes::ZERO) => format!("{fixed} are shared"),
            (fixed, each) => format!("{fixed} are shared and a worker needs {each}"),
        };
        match &self.assignments[..] {
            [Assignment { candidate, budget, .. }] => {
                let (available, taken) = (candidate.available, circumstances(candidate));
                format!("Of {available} available{}{taken} {budget} may be used; {cost}.", at(candidate))
            }
            assignments => {
                let roomy = |Assignment { candidate, budget, room, .. }: &Assignment| {
                    let (available, taken) = (candidate.available, circumstances(candidate));
                    format!("{candidate} may use {budget} of {available}{taken} and has room for {room}")
                };
                format!("On each device {cost}: {}.", listed(&assignments.iter().map(roomy).collect::<Vec<_>>()))
            }
        }
    }

    /// Returns, for a plan that overflows, which part is too large and what will happen because of it.
    pub fn overflow_message(&self) -> Option<String> {
        let overflow = self.overflow?;
        let assignment = self.assignments.iter().find(|assignment| assignment.workers > 0)?;
        let (memory, need) = (self.memory, &self.need);
        let what = match overflow {
            Overflow::Shared => format!("the shared data of {} exceeds", need.fixed),
            Overflow::Worker if need.fixed == Bytes::ZERO => format!("one worker of {} exceeds", need.per_worker),
            Overflow::Worker => {
                format!("one worker of {} beside {} of shared data exceeds", need.per_worker, need.fixed)
            }
        };
        let blamed = if overflow == Overflow::Shared { "the shared data" } else { "the worker" };
        let Assignment { candidate, budget, .. } = assignment;
        let what = format!("{what} the {memory} budget of {budget}{}{}", at(candidate), circumstances(candidate));
        Some(match memory {
            MemoryKind::Ram => format!("{what}, so {blamed} will swap; going on with {}", counted(self.workers)),
            MemoryKind::Vram => format!("{what}; VRAM does not swap, so allocating it would fail"),
        })
    }

    /// Returns "reduced from … to …" for a plan with fewer workers than were wanted.
    pub fn reduction(&self) -> Option<String> {
        self.reduced.then(|| format!("reduced from {} to {}", self.need.wanted(), counted(self.workers)))
    }

    /// Returns one sentence that says what would make one more worker fit.
    pub fn advice(&self) -> Option<String> {
        let more = self.one_more()?;
        let assignment = &self.assignments[more.candidate];
        let lacking = more.available.map(|least| least.saturating_sub(assignment.candidate.available));
        let ways = [
            lacking.map(|lack| format!("with {} more available{}", rounded_up(lack), at(&assignment.candidate))),
            more.per_worker.map(|most| format!("if a worker needed at most {}", rounded_down(most))),
            more.fixed.filter(|_| self.need.fixed > Bytes::ZERO).map(|most| match most {
                Bytes::ZERO => "if nothing were shared".to_owned(),
                most => format!("if at most {} were shared", rounded_down(most)),
            }),
            more.headroom.map(|least| format!("with a headroom of {least}")),
        ];
        let ways: Vec<String> = ways.into_iter().flatten().collect();
        let which = if self.overflow.is_some() { "One worker" } else { "One more worker" };
        (!ways.is_empty()).then(|| format!("{which} would fit {}.", either(&ways)))
    }

    /// Returns the plan in one line, with every number.
    pub fn log_line(&self, label: &str) -> String {
        let Self { memory, need, .. } = self;
        let reduced = self.reduction().map_or(String::new(), |reduction| format!(", {reduction}"));
        let overflow =
            self.overflow_message().map_or(String::new(), |overflow_message| format!(": {overflow_message}"));
        format!(
            "{label}: {memory}: {} free, budget {}, fixed {}, per worker {}: {}{reduced}{overflow}",
            self.available(),
            self.budget(),
            need.fixed,
            need.per_worker,
            counted(self.workers)
        )
    }

    /// Logs the plan in one line: a warning if RAM overflows, an error if VRAM does.
    pub fn log(&self, label: &str) {
        let line = self.log_line(label);
        match (self.overflow, self.memory) {
            (None, _) => tracing::info!(target: "bursar::fit", "{line}"),
            (Some(_), MemoryKind::Ram) => tracing::warn!(target: "bursar::fit", "{line}"),
            (Some(_), MemoryKind::Vram) => tracing::error!(target: "bursar::fit", "{line}"),
        }
    }
}

fn at(candidate: &Candidate) -> String {
    candidate.device.map_or(String::new(), |device| format!(" on {device}"))
}

/// Says what others have, if they have anything, and the limit, if that is why there is no more.
fn circumstances(candidate: &Candidate) -> String {
    let taken = match candidate.charged {
        Bytes::ZERO => String::new(),
        charged => format!(" beside {charged} that others have"),
    };
    let limit =
        candidate.limit.map_or(String::new(), |limit| format!(" (the limit of its ledger, {limit}, leaves no more)"));
    taken + &limit
}

fn counted(workers: u64) -> String {
    format!("{workers} worker{}", if workers == 1 { "" } else { "s" })
}

/// Joins `a`, `a and b`, `a, b and c`, and counts the rest if there are many.
fn listed(parts: &[String]) -> String {
    match parts {
        [] => String::new(),
        [only] => only.clone(),
        parts if parts.len() > NAMED_MAX => {
            format!("{} and {} more", parts[..NAMED_MAX - 1].join(", "), parts.len() - (NAMED_MAX - 1))
        }
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// Joins `a`, `a, or b`, `a, b, or c`.
fn either(parts: &[String]) -> String {
    match parts {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{}, or {last}", first.join(", ")),
    }
}

/// Formats `bytes` in hundredths of the unit that it is shown in, rounded by `round`.
fn hundredths(bytes: Bytes, round: fn(u128, u128) -> u128) -> String {
    const UNITS: [(&str, u64); 5] =
        [("PiB", 1 << 50), ("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, unit)| bytes.0 >= *unit && !bytes.0.is_multiple_of(*unit)) {
        Some((name, unit)) => {
            let hundredths = round(u128::from(bytes.0) * 100, u128::from(*unit));
            format!("{}.{:02} {name}", hundredths / 100, hundredths % 100)
        }
        None => bytes.to_string(),
    }
}

/// Formats a size that is at most `bytes`, so that it can be given as an option.
fn rounded_down(bytes: Bytes) -> String {
    hundredths(bytes, |bytes, unit| bytes / unit)
}

/// Formats a size that is at least `bytes`, so that it can be given as an option.
fn rounded_up(bytes: Bytes) -> String {
    hundredths(bytes, u128::div_ceil)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_people_will_type_again_err_on_the_safe_side() {
        for bytes in [1, 1023, 1024, 1025, (4 << 30) + 1, (7 << 30) / 3, u64::MAX, 5 << 40] {
            let down: Bytes = rounded_down(Bytes(bytes)).parse().expect("a size");
            assert!(down.0 <= bytes, "{bytes}: {down:?}");
            let up = rounded_up(Bytes(bytes));
            assert!(up.parse::<Bytes>().map_or(true, |up| up.0 >= bytes), "{bytes}: {up}");
        }
        assert_eq!(rounded_down(Bytes(3_758_096_383)), "3.49 GiB");
        assert_eq!(rounded_up(Bytes(3_758_096_385)), "3.51 GiB");
    }
}

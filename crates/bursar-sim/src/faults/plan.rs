//! Which calls are to fail: the rules, and the devices that are lost.

use super::call::{Call, Calls};
use crate::random::mix;
use bursar_core::{DeviceId, DriverError, Status};
use std::collections::HashMap;

/// Whether a call that fails reaches the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timing {
    Before,
    After,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum When {
    /// After so many more calls, once; zero means spent.
    In(u64),
    Always,
    /// Each call on its own: the next number of the seed's sequence decides.
    Chance {
        probability: f64,
        seed: u64,
        drawn: u64,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    pub(super) calls: Calls,
    pub(super) when: When,
    pub(super) timing: Timing,
    pub(super) status: Status,
}

impl Rule {
    /// Sees one of its calls; answers whether that one is to fail.
    fn fires(&mut self) -> bool {
        match &mut self.when {
            When::In(left) => {
                *left -= 1;
                *left == 0
            }
            When::Always => true,
            When::Chance { probability, seed, drawn } => {
                *drawn += 1;
                uniform(*seed, *drawn) < *probability
            }
        }
    }

    const fn is_spent(&self) -> bool {
        matches!(self.when, When::In(0))
    }
}

/// The `n`th number of a seed's sequence, in `0.0..1.0`.
fn uniform(seed: u64, n: u64) -> f64 {
    let bits = mix(mix(seed).wrapping_add(n));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// What is to become of the calls yet to come.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) rules: Vec<Rule>,
    lost: HashMap<DeviceId, DriverError>,
}

impl Plan {
    /// Whether any call can fail at all.
    pub(super) fn is_armed(&self) -> bool {
        !self.rules.is_empty() || !self.lost.is_empty()
    }

    /// Shows one call to every rule; answers how it is to fail, if it is. The oldest rule that fires decides.
    pub(super) fn judge(&mut self, call: Call, device: DeviceId) -> Option<(Timing, DriverError)> {
        let mut fired = None;
        self.rules.retain_mut(|rule| {
            if rule.calls.contains(call) && rule.fires() {
                fired.get_or_insert((rule.timing, rule.status));
            }
            !rule.is_spent()
        });
        if let Some(lost) = self.lost.get(&device) {
            fired = Some((Timing::Before, lost.status));
        }
        let (timing, status) = fired?;
        let error = DriverError::new(call.name(), device, status);
        if status.is_sticky() {
            self.lose(error);
        }
        Some((timing, error))
    }

    /// Loses the device of `error`; what it was lost to first stays.
    pub(super) fn lose(&mut self, error: DriverError) {
        self.lost.entry(error.device).or_insert(error);
    }

    /// What the device was lost to.
    pub(super) fn lost(&self, device: DeviceId) -> Option<DriverError> {
        self.lost.get(&device).copied()
    }
}

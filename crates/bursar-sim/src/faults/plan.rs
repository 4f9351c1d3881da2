//! The rules that choose calls to fail, and the devices that are lost.

use super::call::{Call, Calls};
use crate::random::mix;
use bursar_core::{DeviceId, DriverError, Status};
use std::collections::HashMap;

/// The moment at which a call fails: before it reaches the driver, or after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timing {
    Before,
    After,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum When {
    /// Fails once, after this many more calls; zero means spent.
    In(u64),
    Always,
    /// Fails each call independently: the next number of the seed's sequence decides.
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
    /// Counts one of its calls. Returns whether that call fails.
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

/// Returns the `n`th number of a seed's sequence, in `0.0..1.0`.
fn uniform(seed: u64, n: u64) -> f64 {
    let bits = mix(mix(seed).wrapping_add(n));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// The rules for calls to come.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) rules: Vec<Rule>,
    lost: HashMap<DeviceId, DriverError>,
}

impl Plan {
    /// Returns whether any call can fail.
    pub(super) fn is_armed(&self) -> bool {
        !self.rules.is_empty() || !self.lost.is_empty()
    }

    /// Passes a call to every rule. Returns how it fails, if it does. The oldest rule that fires decides.
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

    /// Loses the device of `error`. The first reason stays.
    pub(super) fn lose(&mut self, error: DriverError) {
        self.lost.entry(error.device).or_insert(error);
    }

    /// Returns the error that the device was lost to.
    pub(super) fn lost(&self, device: DeviceId) -> Option<DriverError> {
        self.lost.get(&device).copied()
    }
}

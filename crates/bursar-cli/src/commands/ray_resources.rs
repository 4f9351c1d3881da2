//! `bursar ray-resources`: the cards of this machine as resources and labels of a Ray node.
//!
//! Ray counts a resource of a node as one sum. So there is one for all cards together, which every share is counted in, and one
//! for each card, for shares of a card that was chosen before. No single sum says how large a card is: a label does.

use super::ledger::reading_for;
use crate::failure::Failure;
use crate::output::{Show, say};
use bursar::device::DeviceFacts;
use bursar::driver::{DriverChoiceError, OpenedDriver};
use bursar::ledger::LedgerError;
use bursar::{Bytes, DeviceId};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{Result, Write};

pub(crate) const EXAMPLES: &str = "\
Examples:
  ray start --head --resources \"$(bursar ray-resources)\" --labels \"$(bursar ray-resources --labels)\"
  bursar ray-resources --json           both, for a script";

/// The resource of all cards of a node together. That of one card has its UUID behind it.
const RESOURCE: &str = "bursar_gpu_bytes";

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RayResourcesArgs {
    /// Print the labels instead.
    #[arg(long)]
    labels: bool,
}

/// The resources and labels of a node.
#[derive(Debug, Serialize)]
pub(crate) struct NodeResources {
    resources: Vec<NodeResource>,
    labels: Vec<NodeLabel>,
    #[serde(skip)]
    shows_labels: bool,
}

#[derive(Debug, Serialize)]
struct NodeResource {
    name: String,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct NodeLabel {
    name: &'static str,
    value: String,
}

/// Returns what the cards of this machine are to Ray: each has the bytes that programs may hold together. A card that cannot be
/// used is left out, also one whose ledger cannot be read, and a machine without a driver of cards has none.
pub(crate) fn of_machine(
    opened: std::result::Result<OpenedDriver, Failure>,
    args: &RayResourcesArgs,
) -> std::result::Result<NodeResources, Failure> {
    let cards = match opened {
        Ok(opened) => usable(&opened),
        Err(Failure::Driver(DriverChoiceError::NoCuda { .. })) => Vec::new(),
        Err(failure) => return Err(failure),
    };
    Ok(of_cards(&cards, args))
}

/// Returns the cards that can be used, each with what programs may hold of it, and says on standard error why others are left out.
fn usable(opened: &OpenedDriver) -> Vec<(Bytes, DeviceFacts)> {
    let facts = (0..opened.driver.device_count()).filter_map(|ordinal| opened.driver.facts(DeviceId(ordinal)).ok());
    let with_limit = |facts: DeviceFacts| match limit(&facts) {
        Ok(limit) => Some((limit, facts)),
        Err(error) => {
            say(format_args!("bursar: {} is left out, because its ledger cannot be read: {error}", facts.uuid));
            None
        }
    };
    facts.filter_map(with_limit).collect()
}

fn of_cards(cards: &[(Bytes, DeviceFacts)], args: &RayResourcesArgs) -> NodeResources {
    let one = |(limit, facts): &(Bytes, DeviceFacts)| NodeResource {
        name: format!("{RESOURCE}_{}", facts.uuid),
        bytes: limit.get(),
    };
    let mut resources: Vec<NodeResource> = cards.iter().map(one).collect();
    let mut labels = Vec::new();
    if let Some((largest, facts)) = cards.iter().max_by_key(|(limit, _)| *limit) {
        let bytes = cards.iter().map(|(limit, _)| limit.get()).sum();
        resources.insert(0, NodeResource { name: RESOURCE.to_owned(), bytes });
        labels.push(NodeLabel { name: "bursar-cards", value: cards.len().to_string() });
        labels.push(NodeLabel { name: "bursar-largest-card-gib", value: (largest.get() >> 30).to_string() });
        labels.push(NodeLabel { name: "bursar-card-type", value: as_label(&facts.name) });
    }
    NodeResources { resources, labels, shows_labels: args.labels }
}

/// Returns what programs may hold together of a device: by its ledger, or all of it where there is none yet.
fn limit(facts: &DeviceFacts) -> std::result::Result<Bytes, LedgerError> {
    match reading_for(facts)? {
        Some(reading) => Ok(reading.limit.min(reading.total)),
        None => Ok(facts.total),
    }
}

/// Returns text as the value of a label: letters, digits, dots and dashes, at most 63, and no dot or dash at its ends.
fn as_label(text: &str) -> String {
    let allowed = |letter: char| if letter.is_ascii_alphanumeric() || letter == '.' { letter } else { '-' };
    let value: String = text.chars().map(allowed).take(63).collect();
    value.trim_matches(['-', '.']).to_owned()
}

impl Show for NodeResources {
    fn show(&self, out: &mut dyn Write) -> Result<()> {
        if self.shows_labels {
            let pairs: Vec<_> = self.labels.iter().map(|NodeLabel { name, value }| format!("{name}={value}")).collect();
            return writeln!(out, "{}", pairs.join(","));
        }
        let resources: BTreeMap<_, _> =
            self.resources.iter().map(|resource| (&resource.name, resource.bytes)).collect();
        serde_json::to_writer(&mut *out, &resources)?;
        writeln!(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_cards_are_made_labels() {
        let cases = [("NVIDIA H200", "NVIDIA-H200"), ("(odd) card!", "odd--card"), ("", ""), ("é", "")];
        assert_eq!(cases.map(|(name, _)| as_label(name)), cases.map(|(_, label)| label.to_owned()));
        assert_eq!(as_label(&"x".repeat(100)).len(), 63);
    }
}

//! `bursar bench cluster`: requests for memory of one card each, over many nodes, by Bursar's planner and by others.
//!
//! Time is simulated: only decisions are timed. What is in use is measured while requests still come and some wait, after
//! the first half of them.

mod policy;
mod workload;

use crate::failure::Failure;
use crate::output::{FAINT, HEADING, Progress, Show};
use bursar::Bytes;
use bursar::fit::ClusterPlanner;
use bursar::sim::Random;
use policy::{Choice, Planned, Policy, Queued};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::Write;
use std::time::Instant;
use workload::Arrival;

/// The options of `bursar bench cluster`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ClusterArgs {
    /// The number of nodes.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    nodes: u32,
    /// The number of cards of each node; those of a node are of one size.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    cards: u32,
    /// The number of requests.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    requests: u32,
    /// The work that comes, as a multiple of what all cards together could do.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.5, value_parser = positive)]
    load: f64,
    /// The seed of cards and requests; each round has the next one.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The number of rounds, each with its own cards and requests and a row for every policy.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  bursar bench cluster --rounds 10
  bursar bench cluster --nodes 4000 --requests 400000 --json | jq '.rows[] | {policy, in_use}'";

fn positive(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|load: &f64| *load > 0.0 && *load <= 100.0).ok_or("a number above 0, at most 100".into())
}

/// The rows of `bursar bench cluster`.
#[derive(Debug, Serialize)]
pub(crate) struct ClusterRuns {
    nodes: u32,
    cards: usize,
    requests: u32,
    load: f64,
    rows: Vec<ClusterRow>,
}

#[derive(Debug, Serialize)]
struct ClusterRow {
    policy: &'static str,
    seed: u64,
    /// The part of all bytes that was in use while requests came and some waited.
    in_use: f64,
    /// The waits of nine in ten and of 99 in 100 requests under 8 GiB, in mean durations.
    small_wait_p90: f64,
    small_wait_p99: f64,
    /// Those of requests of 40 GiB and more.
    large_wait_p90: f64,
    large_wait_p99: f64,
    /// The longest wait of any.
    longest_wait: f64,
    ns_per_decision: f64,
    slowest_decision_us: f64,
    seconds: f64,
}

/// The policies by name.
const POLICIES: [&str; 4] = ["bursar", "best fit", "first fit", "ray fractions"];

pub(crate) fn cluster(args: &ClusterArgs) -> Result<ClusterRuns, Failure> {
    let mut progress = Progress::new(args.rounds as usize * POLICIES.len());
    let mut rows = Vec::new();
    for round in 0..args.rounds {
        let seed = args.seed.wrapping_add(round.into());
        for policy in POLICIES {
            progress.step(&format!("{policy}, seed {seed}"));
            rows.push(run(args, seed, policy));
        }
    }
    let cards = args.nodes as usize * args.cards as usize;
    Ok(ClusterRuns { nodes: args.nodes, cards, requests: args.requests, load: args.load, rows })
}

fn run(args: &ClusterArgs, seed: u64, name: &'static str) -> ClusterRow {
    let mut random = Random::new(seed);
    let cards = workload::cards(args.nodes, args.cards, &mut random);
    let capacity: u64 = cards.iter().sum();
    let largest = cards.iter().copied().max().unwrap_or(0);
    let mut arrivals = workload::arrivals(args.requests, capacity, args.load, &mut random);
    arrivals.iter_mut().for_each(|arrival| arrival.bytes = arrival.bytes.min(largest));
    let requests = arrivals.len();
    let mut policy: Box<dyn Policy> = match name {
        "bursar" => Box::new(Planned(ClusterPlanner::new(cards.into_iter().map(Bytes)))),
        "best fit" => Box::new(Queued::new(Choice::Best, false, &cards, requests)),
        "first fit" => Box::new(Queued::new(Choice::First, false, &cards, requests)),
        _ => Box::new(Queued::new(Choice::First, true, &cards, requests)),
    };
    let start = Instant::now();
    let mut simulation = Simulation::new(&arrivals);
    simulation.run(&mut *policy);
    simulation.row(name, seed, capacity, start.elapsed().as_secs_f64())
}

/// Requests that come, run and end.
struct Simulation<'a> {
    arrivals: &'a [Arrival],
    /// The requests that run, by the time of their end.
    ends: BinaryHeap<Reverse<(u64, usize)>>,
    started: Vec<f64>,
    now: f64,
    running: u64,
    waiting: usize,
    /// The bytes in use times time, and the time, while requests come and some wait.
    used: f64,
    saturated: f64,
    decisions: u64,
    spent_ns: u64,
    slowest_ns: u64,
}

impl<'a> Simulation<'a> {
    fn new(arrivals: &'a [Arrival]) -> Self {
        let started = vec![f64::NAN; arrivals.len()];
        let [now, used, saturated] = [0.0; 3];
        let [running, decisions, spent_ns, slowest_ns] = [0; 4];
        Self {
            arrivals,
            ends: BinaryHeap::new(),
            started,
            now,
            running,
            waiting: 0,
            used,
            saturated,
            decisions,
            spent_ns,
            slowest_ns,
        }
    }

    fn run(&mut self, policy: &mut dyn Policy) {
        let (arrivals, half) = (self.arrivals, self.arrivals.len() / 2);
        let mut placed = Vec::new();
        for (request, arrival) in arrivals.iter().enumerate() {
            self.end_until(arrival.at, policy, &mut placed, request >= half);
            self.advance(arrival.at, request >= half);
            self.waiting += 1;
            self.decide(&mut placed, |placed| policy.arrive(request, arrival.bytes, placed));
        }
        self.end_until(f64::INFINITY, policy, &mut placed, false);
    }

    fn end_until(&mut self, time: f64, policy: &mut dyn Policy, placed: &mut Vec<usize>, counts: bool) {
        // Times are above zero, where the bits of a number are in its order.
        while let Some(&Reverse((at, request))) =
            self.ends.peek().filter(|Reverse((at, _))| f64::from_bits(*at) <= time)
        {
            self.ends.pop();
            self.advance(f64::from_bits(at), counts);
            self.running -= self.arrivals[request].bytes;
            self.decide(placed, |placed| policy.end(request, placed));
        }
    }

    fn advance(&mut self, to: f64, counts: bool) {
        if counts && self.waiting > 0 {
            self.used += self.running as f64 * (to - self.now);
            self.saturated += to - self.now;
        }
        self.now = to;
    }

    fn decide(&mut self, placed: &mut Vec<usize>, decide: impl FnOnce(&mut Vec<usize>)) {
        let start = Instant::now();
        decide(placed);
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        (self.decisions, self.spent_ns, self.slowest_ns) =
            (self.decisions + 1, self.spent_ns.saturating_add(ns), self.slowest_ns.max(ns));
        for request in placed.drain(..) {
            let Arrival { bytes, lasts, .. } = self.arrivals[request];
            (self.waiting, self.running) = (self.waiting - 1, self.running + bytes);
            self.started[request] = self.now;
            self.ends.push(Reverse(((self.now + lasts).to_bits(), request)));
        }
    }

    fn row(&self, policy: &'static str, seed: u64, capacity: u64, seconds: f64) -> ClusterRow {
        let waits = |sizes: std::ops::Range<u64>| {
            let both = self.arrivals.iter().zip(&self.started);
            let mut waits: Vec<f64> = both
                .filter(|(arrival, _)| sizes.contains(&arrival.bytes))
                .map(|(arrival, at)| at - arrival.at)
                .collect();
            waits.sort_by(f64::total_cmp);
            waits
        };
        let at = |waits: &[f64], part: f64| {
            waits.get((waits.len() as f64 * part) as usize).or(waits.last()).copied().unwrap_or(0.0)
        };
        let (small, large, all) = (waits(0..8 << 30), waits(40 << 30..u64::MAX), waits(0..u64::MAX));
        ClusterRow {
            policy,
            seed,
            in_use: self.used / (self.saturated.max(f64::MIN_POSITIVE) * capacity as f64),
            small_wait_p90: at(&small, 0.9),
            small_wait_p99: at(&small, 0.99),
            large_wait_p90: at(&large, 0.9),
            large_wait_p99: at(&large, 0.99),
            longest_wait: at(&all, 1.0),
            ns_per_decision: self.spent_ns as f64 / self.decisions.max(1) as f64,
            slowest_decision_us: self.slowest_ns as f64 / 1e3,
            seconds,
        }
    }
}

impl Show for ClusterRuns {
    fn show(&self, out: &mut dyn Write) -> std::io::Result<()> {
        writeln!(
            out,
            "{HEADING}{} requests over {} cards of {} nodes{HEADING:#}",
            self.requests, self.cards, self.nodes
        )?;
        writeln!(
            out,
            "{FAINT}policy         seed  in use  small p99  large p90  large p99  longest  ns/decision  slowest{FAINT:#}"
        )?;
        for row in &self.rows {
            writeln!(
                out,
                "{:<14} {:>4}  {:>6.4}  {:>9.3}  {:>9.3}  {:>9.3}  {:>7.3}  {:>11.0}  {:>4.0} µs",
                row.policy,
                row.seed,
                row.in_use,
                row.small_wait_p99,
                row.large_wait_p90,
                row.large_wait_p99,
                row.longest_wait,
                row.ns_per_decision,
                row.slowest_decision_us
            )?;
        }
        writeln!(out, "{FAINT}waits are in mean durations of a request{FAINT:#}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c4_the_planner_uses_at_least_what_best_fit_does_at_saturation() {
        let args = ClusterArgs { nodes: 100, cards: 8, requests: 10_000, load: 1.5, seed: 1, rounds: 8 };
        let runs = cluster(&args).expect("it needs no machine");
        let in_use = |policy| {
            let of_policy: Vec<f64> =
                runs.rows.iter().filter(|row| row.policy == policy).map(|row| row.in_use).collect();
            assert_eq!(of_policy.len(), 8);
            of_policy.iter().sum::<f64>() / 8.0
        };
        let [bursar, best, first, ray] = POLICIES.map(in_use);
        assert!(bursar >= best && best >= first && first > ray, "{bursar} {best} {first} {ray}");
        assert!(bursar > 0.98 && runs.rows.iter().all(|row| row.longest_wait.is_finite()), "{bursar}");
    }
}

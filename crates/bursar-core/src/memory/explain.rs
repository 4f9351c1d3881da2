//! The explanation of a refusal for want of memory.
//!
//! Limits and leaves refuse with exact numbers; the pool and the crates above turn that into a [`Shortage`], once, off
//! the hot path. It is about the whole request, however many frames that was to be made of, and about what is under the
//! limit that refused: nobody else's memory would help. Where that is an account's, the account says who has its memory.

use crate::error::{Refusal, ScopeHoldings};
use crate::observe::GraphCount;
use crate::{Bytes, DeviceContext, Error, Holding, LimitName, MemoryInfo, MemoryUsage, Shortage, Survey};
use std::cmp::Reverse;

/// The number of holders that an explanation names at most.
const HOLDERS: usize = 10;

/// Turns a refusal for want of memory into one with an explanation: the figures of the driver, of the memory that
/// `survey` describes, and of those who hold blocks under the limit that refused, where an observer counts by tag. Any
/// other error is returned unchanged, and one that is explained already with `requested` as what was asked for.
///
/// `granted` is what the request would have cost, and its alignment. Most programs call
/// [`explain`](crate::DeviceMemoryResourceExt::explain) of the memory instead.
#[cold]
pub fn explain(
    context: &DeviceContext,
    survey: impl FnOnce(&mut Survey),
    mut refused: Error,
    requested: Bytes,
    granted: (Bytes, u64),
) -> Error {
    if let Some(shortage) = refused.shortage_mut() {
        shortage.requested = requested;
        return refused;
    }
    if !matches!(refused, Error::OutOfBudget { .. } | Error::OutOfMemory { .. }) {
        return refused;
    }
    let refusal = match &refused {
        Error::OutOfBudget { by: Some(by), requested, .. } => Some((by.clone(), *requested)),
        _ => None,
    };
    let survey = Survey::of_refusal(refusal, survey);
    let mut shortage = Shortage::new(context.device(), requested);
    if let Ok(MemoryInfo { free, total }) = context.driver().memory(context.device()) {
        (shortage.free, shortage.total) = (Some(free), Some(total));
    }
    if let Some(MemoryUsage { held, cached, pending, largest_free_run, .. }) =
        survey.usage().or_else(|| context.usage())
    {
        (shortage.held, shortage.cached, shortage.pending) = (Some(held), Some(cached), Some(pending));
        shortage.largest_free_run = largest_free_run;
    }
    match &refused {
        Error::OutOfBudget { requested, remaining, limit, by, .. } => {
            let missing = requested.saturating_sub(*remaining);
            by_limit(context, &survey, by.as_ref(), &mut shortage, (*limit, missing), granted);
        }
        Error::OutOfMemory { requested, free, total, .. } => {
            (shortage.free, shortage.total) = (Some(*free), Some(*total));
            by_device(context, *requested, &mut shortage);
        }
        _ => {}
    }
    refused.explained(shortage)
}

/// Explains the refusal of a limit.
fn by_limit(
    context: &DeviceContext,
    survey: &Survey,
    by: Option<&LimitName>,
    shortage: &mut Shortage,
    (limit, missing): (Bytes, Bytes),
    (granted, align): (Bytes, u64),
) {
    use crate::Advice;
    (shortage.limit, shortage.by) = (Some(limit), by.cloned());
    let reading = survey.limits().find(|limit| Some(&limit.name) == by);
    let (Some(by), Some(reading)) = (by, reading) else {
        // Of a limit that is not on the way nothing is known but what it said.
        shortage.advice = match granted > limit {
            true => Advice::TooLarge,
            false => Advice::AtLeast { missing, listed: None },
        };
        return;
    };
    let scopes = context.sink().scopes();
    let stacks = scopes.stacks();
    let under = if reading.counts { scopes.parts_of(by) } else { through(&stacks, by) };
    let (mut blocks, inside) = (by_tag(&under), by_tag(&scopes.graphs_over(by)));
    let all = divided(&blocks, &inside);
    let holders = &all[..all.len().min(HOLDERS)];
    let (counted, listed) = (sum(&all), sum(holders));
    blocks.truncate(HOLDERS);
    let is_below_pool = survey.is_below_pool(by);
    shortage.unlisted = reading
        .figures
        .filter(|_| !is_below_pool)
        .map(|(_, used)| used.saturating_sub(listed))
        .or_else(|| is_below_pool.then(|| counted.saturating_sub(listed)));
    let device_free = shortage.free.unwrap_or_default();
    let missing = if is_below_pool { missing } else { reading.missing(granted).unwrap_or(missing).max(missing) };
    let refusal = Refusal { survey, by, granted, align, missing, limit, device_free, under: &under, stacks: &stacks };
    // What is in a graph comes back with all of that graph's memory, so advice begins with blocks as they were granted.
    shortage.advice = match refusal.advice(&blocks) {
        Advice::Free { mut tags, must_wait, .. } => {
            if tags.contains(&GraphCount::tag()) {
                let further: Vec<_> = inside.iter().map(|part| part.tag).filter(|tag| !tags.contains(tag)).collect();
                tags.extend(further);
            }
            let bytes = sum(all.iter().filter(|holding| tags.contains(&holding.tag)));
            Advice::Free { tags, bytes, must_wait }
        }
        Advice::AtLeast { missing, listed: Some(_) } => Advice::AtLeast { missing, listed: Some(listed) },
        advice => advice,
    };
    shortage.holders = holders.to_vec();
    if let Some(claims) = &reading.claims {
        shortage.advice = std::mem::replace(&mut shortage.advice, Advice::Unknown).with_claims(claims);
        shortage.claims = claims.clone();
        shortage.claims.processes.truncate(HOLDERS);
        shortage.claims.waiting.truncate(HOLDERS);
    }
}

/// Explains the refusal of a device. Whoever else uses it may take what is freed, and what the driver makes of it is its
/// own affair: nothing is promised.
fn by_device(context: &DeviceContext, requested: Bytes, shortage: &mut Shortage) {
    use crate::Advice;
    let counted = context.sink().counted_holders(context.device());
    let counts = counted.is_some();
    let mut holders = counted.unwrap_or_default();
    holders.sort_by_key(|holding| Reverse(holding.bytes));
    holders.truncate(HOLDERS);
    let listed = sum(&holders);
    let (free, total) = (shortage.free.unwrap_or_default(), shortage.total.unwrap_or(Bytes::MAX));
    shortage.advice = match requested.saturating_sub(free) {
        _ if requested > total => Advice::TooLarge,
        Bytes::ZERO => Advice::InPieces,
        missing => Advice::AtLeast { missing, listed: counts.then_some(listed) },
    };
    shortage.holders = holders;
}

/// Returns the stacks that stand over a limit.
fn through(stacks: &[ScopeHoldings], limit: &LimitName) -> Vec<ScopeHoldings> {
    stacks.iter().filter(|stack| stack.passes(limit.id())).cloned().collect()
}

/// Returns the bytes of all holdings.
fn sum<'a>(holdings: impl IntoIterator<Item = &'a Holding>) -> Bytes {
    holdings.into_iter().fold(Bytes::ZERO, |sum, holding| sum.saturating_add(holding.bytes))
}

/// Returns what is held for each tag, the largest first, with what is `inside` the memory of graphs under its own tags.
fn divided(blocks: &[Holding], inside: &[Holding]) -> Vec<Holding> {
    let (mut holders, graph) = (blocks.to_vec(), GraphCount::tag());
    let Some(whole) = holders.iter_mut().find(|holding| holding.tag == graph) else { return holders };
    let mut parts = inside.to_vec();
    for part in &mut parts {
        part.bytes = part.bytes.min(whole.bytes);
        whole.bytes = whole.bytes.saturating_sub(part.bytes);
    }
    let mut holders = merged(holders.iter().chain(&parts));
    holders.retain(|holding| holding.bytes > Bytes::ZERO);
    holders
}

/// Returns what is held for each tag, the largest first.
fn by_tag(scopes: &[ScopeHoldings]) -> Vec<Holding> {
    merged(scopes.iter().flat_map(|scope| &scope.holdings))
}

/// Returns the sum of holdings for each tag, the largest first.
fn merged<'a>(holdings: impl Iterator<Item = &'a Holding>) -> Vec<Holding> {
    let mut holders: Vec<Holding> = Vec::new();
    for holding in holdings {
        match holders.iter_mut().find(|known| known.tag == holding.tag) {
            Some(known) => {
                known.bytes = known.bytes.saturating_add(holding.bytes);
                known.blocks += holding.blocks;
            }
            None => holders.push(*holding),
        }
    }
    holders.sort_by_key(|holding| Reverse(holding.bytes));
    holders
}

//! Marks: the streams that have used one block, and the numbers of their last submissions.

use crate::stream::Clocks;
use crate::{Access, Stream};

/// The mark of one stream, which is its last use of the block: the numbers of its submissions that last wrote and last
/// read it, zero where there was none.
#[derive(Clone, Copy, Debug)]
struct StreamUse {
    stream: Stream,
    write: u64,
    read: u64,
}

const _: () = assert!(size_of::<StreamUse>() == 32, "a mark is four words");

impl StreamUse {
    const fn last(&self) -> u64 {
        if self.write > self.read { self.write } else { self.read }
    }

    /// Returns what an access on another stream has to wait for because of this mark.
    fn need(&self, access: Access) -> Option<Need> {
        let number = match access {
            Access::Read => self.write,
            Access::Write => self.last(),
        };
        (number > 0).then_some(Need { stream: self.stream, number })
    }

    #[inline]
    fn number(&mut self, access: Access) -> &mut u64 {
        match access {
            Access::Read => &mut self.read,
            Access::Write => &mut self.write,
        }
    }

    /// Raises the number of the last such access; returns whether that changed it.
    #[inline]
    fn raise(&mut self, access: Access, number: u64) -> bool {
        let last = self.number(access);
        let is_news = *last < number;
        *last = number.max(*last);
        is_news
    }
}

/// A submission on another stream that a stream has to come after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) stream: Stream,
    pub(super) number: u64,
}

impl Need {
    /// Returns whether `waiter` comes after it already.
    pub(super) fn is_met(&self, waiter: Stream, clocks: &Clocks) -> bool {
        self.stream == waiter || clocks.has_seen(waiter, self.stream, self.number)
    }

    /// Takes out the need to wait for next: one that no other stream among them has seen, so that waiting for it may
    /// meet the others.
    pub(super) fn take_latest(needs: &mut Vec<Self>, clocks: &Clocks) -> Option<Self> {
        let is_latest = |at: &usize| {
            let others = needs.iter().enumerate().filter(|(other, _)| other != at);
            !others.into_iter().any(|(_, other)| needs[*at].is_met(other.stream, clocks))
        };
        let at = (0..needs.len()).find(is_latest).unwrap_or(0);
        (!needs.is_empty()).then(|| needs.swap_remove(at))
    }
}

/// The marks of one block, one for each stream. A block that stays on one stream has no list.
#[derive(Debug)]
pub(super) struct Marks {
    one: Option<StreamUse>,
    others: Vec<StreamUse>,
}

impl Marks {
    /// Makes the marks of a block that was allocated on `stream`, which counts as a write there.
    pub(super) const fn born(stream: Stream, number: u64) -> Self {
        Self { one: Some(StreamUse { stream, write: number, read: 0 }), others: Vec::new() }
    }

    /// Returns whether no other stream has a mark.
    pub(super) fn stay_on(&self, stream: Stream) -> bool {
        self.others.is_empty() && self.one.as_ref().is_none_or(|mark| mark.stream == stream)
    }

    /// Returns the streams that have a mark.
    pub(super) fn streams(&self) -> Vec<Stream> {
        self.iter().map(|mark| mark.stream).collect()
    }

    fn iter(&self) -> impl Iterator<Item = &StreamUse> {
        self.one.iter().chain(&self.others)
    }

    fn find(&mut self, stream: Stream) -> Option<&mut StreamUse> {
        self.one.iter_mut().chain(&mut self.others).find(|mark| mark.stream == stream)
    }

    fn retain(&mut self, keeps: impl Fn(&StreamUse) -> bool) {
        self.others.retain(&keeps);
        if !self.one.as_ref().is_some_and(keeps) {
            self.one = self.others.pop();
        }
    }

    /// Marks a use of a block that no other stream has a mark on; returns whether that changed the mark, or `None`
    /// where another stream has one.
    #[inline]
    pub(super) fn mark_only(&mut self, stream: Stream, access: Access, number: u64) -> Option<bool> {
        let only = self.one.as_mut().filter(|mark| mark.stream.is_same_stream(stream) && self.others.is_empty());
        only.map(|mark| mark.raise(access, number))
    }

    /// Marks a use by a submission, which may be open; returns whether that changed the mark.
    pub(super) fn mark(&mut self, stream: Stream, access: Access, number: u64) -> bool {
        if let Some(mark) = self.find(stream) {
            return mark.raise(access, number);
        }
        let mut mark = StreamUse { stream, write: 0, read: 0 };
        mark.raise(access, number);
        match &mut self.one {
            Some(_) => self.others.push(mark),
            one => *one = Some(mark),
        }
        true
    }

    /// Takes back the mark of a submission that launched nothing, or whose work has run. What came before it on the
    /// stream stays.
    pub(super) fn retract(&mut self, stream: Stream, access: Access, number: u64) {
        if let Some(mark) = self.find(stream)
            && *mark.number(access) == number
        {
            *mark.number(access) = number - 1;
            self.retain(|mark| mark.last() > 0);
        }
    }

    /// Returns what an access on `stream` may have to wait for, less what is known to have run.
    pub(super) fn needs(
        &mut self,
        stream: Stream,
        access: Access,
        clocks: &Clocks,
        has_ended: impl Fn(Stream) -> bool,
    ) -> Vec<Need> {
        self.retain(|mark| has_ended(mark.stream) || !clocks.is_known(mark.stream, mark.last()));
        let elsewhere = self.iter().filter(|mark| mark.stream != stream);
        let needs = elsewhere.filter_map(|mark| mark.need(access));
        needs.filter(|need| has_ended(need.stream) || !need.is_met(stream, clocks)).collect()
    }

    /// Forgets what a write on `stream` came after: whoever waits for the write waits for that too.
    pub(super) fn forget_seen(&mut self, stream: Stream, clocks: &Clocks, has_ended: impl Fn(Stream) -> bool) {
        self.retain(|mark| {
            mark.stream == stream || has_ended(mark.stream) || !clocks.has_seen(stream, mark.stream, mark.last())
        });
    }

    /// Transfers the mark of a stream that has ended to its heir, as of `number`.
    pub(super) fn inherit(&mut self, ended: Stream, heir: Stream, number: u64) {
        let Some(&StreamUse { write, read, .. }) = self.find(ended).as_deref() else { return };
        self.retain(|mark| mark.stream != ended);
        for (access, last) in [(Access::Write, write), (Access::Read, read)] {
            if last > 0 {
                self.mark(heir, access, number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::StreamTable;
    use crate::{DeviceId, RawStream};

    const LIVE: fn(Stream) -> bool = |_| false;

    fn streams<const N: usize>() -> [Stream; N] {
        let table = StreamTable::new(1, DeviceId(0));
        std::array::from_fn(|at| table.own(RawStream(10 + at as u64), None).expect("room"))
    }

    fn used(marks: &mut Marks, stream: Stream, access: Access, clocks: &Clocks) -> u64 {
        let number = clocks.pass(stream);
        if marks.mark_only(stream, access, number).is_none() {
            marks.mark(stream, access, number);
        }
        number
    }

    fn need(stream: Stream, number: u64) -> Need {
        Need { stream, number }
    }

    #[test]
    fn t1_a_read_needs_the_writes_of_others_and_a_write_their_reads_too() {
        let (clocks, [a, b, c]) = (Clocks::default(), streams());
        let born = clocks.pass(a);
        let mut marks = Marks::born(a, born);
        assert_eq!(marks.needs(a, Access::Write, &clocks, LIVE), []);
        assert_eq!(marks.needs(b, Access::Read, &clocks, LIVE), [need(a, born)]);
        let read = used(&mut marks, b, Access::Read, &clocks);
        assert_eq!(marks.needs(c, Access::Read, &clocks, LIVE), [need(a, born)]);
        assert_eq!(marks.needs(c, Access::Write, &clocks, LIVE), [need(a, born), need(b, read)]);
    }

    #[test]
    fn t4_a_use_that_is_open_outlives_the_writes_that_waited_for_its_stream() {
        let (clocks, [a, b]) = (Clocks::default(), streams());
        let mut marks = Marks::born(a, clocks.pass(a));
        let reading = clocks.begin(b);
        marks.mark(b, Access::Read, reading);
        let writing = clocks.begin(a);
        clocks.waited(a, b, &clocks.look(b));
        marks.mark(a, Access::Write, writing);
        marks.forget_seen(a, &clocks, LIVE);
        clocks.end(a);
        clocks.end(b);
        assert_eq!(marks.needs(a, Access::Write, &clocks, LIVE), [need(b, reading)], "the reader is not lost");
    }

    #[test]
    fn t5_a_million_uses_from_eight_streams_are_eight_marks() {
        let (clocks, all) = (Clocks::default(), streams::<8>());
        let mut marks = Marks::born(all[0], clocks.pass(all[0]));
        for nth in 0..1_000_000 {
            let access = if nth % 7 == 0 { Access::Write } else { Access::Read };
            used(&mut marks, all[nth % 8], access, &clocks);
        }
        assert_eq!(marks.streams().len(), 8);
        assert!(marks.others.capacity() <= 8, "{}", marks.others.capacity());
        for stream in &all[1..] {
            clocks.waited(all[0], *stream, &clocks.look(*stream));
        }
        marks.forget_seen(all[0], &clocks, LIVE);
        assert_eq!(marks.streams(), [all[0]], "a write that came after all of them is enough");
        assert!(marks.stay_on(all[0]));
    }

    #[test]
    fn t5_a_stream_that_ended_leaves_its_uses_to_the_heir() {
        let (clocks, [a, heir, b]) = (Clocks::default(), streams());
        let mut marks = Marks::born(a, clocks.pass(a));
        marks.inherit(a, heir, 7);
        assert_eq!(marks.needs(b, Access::Read, &clocks, LIVE), [need(heir, 7)]);
        marks.mark(a, Access::Read, 3);
        marks.inherit(a, heir, 9);
        assert_eq!(marks.needs(b, Access::Read, &clocks, LIVE), [need(heir, 7)]);
        assert_eq!(marks.needs(b, Access::Write, &clocks, LIVE), [need(heir, 9)]);
        assert_eq!(marks.streams(), [heir]);
    }

    #[test]
    fn t3_a_mark_that_is_taken_back_leaves_what_came_before() {
        let (clocks, [a, b]) = (Clocks::default(), streams());
        let mut marks = Marks::born(a, clocks.pass(a));
        let number = clocks.pass(b);
        marks.mark(b, Access::Read, number);
        marks.retract(b, Access::Read, number);
        assert_eq!(marks.streams(), [a], "it was the first of its stream");
        let earlier = used(&mut marks, b, Access::Read, &clocks);
        let number = clocks.pass(b);
        assert!(marks.mark(b, Access::Read, number) && !marks.mark(b, Access::Read, number));
        marks.retract(b, Access::Read, number);
        assert_eq!(marks.needs(a, Access::Write, &clocks, LIVE), [need(b, earlier)]);
    }

    #[test]
    fn t2_waiting_for_the_latest_meets_what_it_has_seen_and_two_that_saw_each_other_are_both_kept() {
        let (clocks, [a, b, c]) = (Clocks::default(), streams());
        let (of_a, of_b) = (clocks.pass(a), clocks.pass(b));
        clocks.waited(b, a, &clocks.look(a));
        let mut needs = vec![need(a, of_a), need(b, of_b)];
        assert_eq!(Need::take_latest(&mut needs, &clocks), Some(need(b, of_b)));
        clocks.waited(c, b, &clocks.look(b));
        assert!(needs[0].is_met(c, &clocks));
        clocks.waited(a, b, &clocks.look(b));
        let mut both = vec![need(a, of_a), need(b, of_b)];
        assert!(Need::take_latest(&mut both, &clocks).is_some());
        assert_eq!(both.len(), 1);
    }
}

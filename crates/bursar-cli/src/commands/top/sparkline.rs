//! The memory of a device over time, as one line of text.

use super::theme::Theme;
use bursar::metrics::{DeviceHistory, Figures};

/// One column of a sparkline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Point {
    /// A part of a whole.
    Of(u64, u64),
    /// The ledger could not be read.
    Unreadable,
    /// Nothing was sampled.
    Absent,
}

/// Returns the last columns, each the fullest sample of a step. A step in which nothing was sampled, between two in which
/// something was, is that before it.
pub(super) fn points(
    history: &DeviceHistory,
    until_ms: u64,
    step_ms: u64,
    columns: usize,
    part: fn(&Figures) -> u64,
) -> Vec<Point> {
    let step = step_ms.max(1);
    let mut points = vec![Point::Absent; columns];
    for sample in history.samples().rev() {
        let Some(back) = (until_ms / step).checked_sub(sample.at_ms / step) else { continue };
        let Some(at) = usize::try_from(back).ok().and_then(|back| columns.checked_sub(back + 1)) else { break };
        let point = sample.figures.map_or(Point::Unreadable, |figures| Point::Of(part(&figures), figures.total));
        points[at] = match (points[at], point) {
            (Point::Of(before, _), Point::Of(now, _)) if before >= now => points[at],
            (Point::Of(..), Point::Unreadable) => points[at],
            _ => point,
        };
    }
    for at in 1..columns.saturating_sub(1) {
        if points[at] == Point::Absent && points[at + 1] != Point::Absent {
            points[at] = points[at - 1];
        }
    }
    points
}

/// Draws points: `.` is nothing, `?` an unreadable ledger, and a blank no sample.
pub(super) fn text(points: &[Point], theme: Theme) -> String {
    let levels = theme.levels();
    let character = |point: &Point| match *point {
        Point::Absent => ' ',
        Point::Unreadable => '?',
        Point::Of(0, _) => '.',
        Point::Of(part, all) => {
            let eighth = (u128::from(part) * 8).div_ceil(u128::from(all.max(1))).clamp(1, 8);
            levels[usize::try_from(eighth).unwrap_or(8) - 1]
        }
    };
    points.iter().map(character).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bursar::metrics::{DeviceState, History, LedgerState, State, UnreadableLedger};

    fn recorded(held: &[(u64, Option<u64>)]) -> History {
        let mut history = History::default();
        for &(at_ms, held) in held {
            let uuid = "GPU-1".to_owned();
            let mut state = State::default();
            state.at_ms = at_ms;
            state.devices.push(match held {
                Some(held) => DeviceState::Readable(LedgerState { uuid, total: 80, held, ..LedgerState::default() }),
                None => DeviceState::Unreadable(UnreadableLedger { uuid, ..UnreadableLedger::default() }),
            });
            history.record(&state);
        }
        history
    }

    #[test]
    fn m1_an_unreadable_moment_is_shown_as_one() {
        let samples = [(1_000, Some(0)), (2_000, Some(1)), (3_000, None), (4_000, Some(40)), (6_000, Some(80))];
        let history = recorded(&samples);
        let points = points(&history.devices()[0], 6_500, 1_000, 8, |figures| figures.held);
        assert_eq!(text(&points, Theme { unicode: true, ..Theme::default() }), "  .▁?▄▄█");
        assert_eq!(text(&points, Theme::default()), "  ._?~~#");
    }

    #[test]
    fn a_step_shows_its_fullest_sample() {
        let history = recorded(&[(10_000, Some(10)), (13_000, Some(70)), (16_000, None), (19_000, Some(20))]);
        let points = points(&history.devices()[0], 19_000, 10_000, 1, |figures| figures.held);
        assert_eq!(points, [Point::Of(70, 80)]);
    }
}

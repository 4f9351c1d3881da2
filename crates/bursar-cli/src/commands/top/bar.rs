//! The bar of a device: its memory by what has become of it, told by letters and, where there are some, by colours.

use super::theme::Theme;
use bursar::metrics::LedgerState;
use ratatui::style::{Color, Style};
use ratatui::text::Span;

/// A kind of memory in a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Held,
    Cached,
    SetAside,
    Unmanaged,
    Free,
}

impl Kind {
    pub(super) const ALL: [Self; 5] = [Self::Held, Self::Cached, Self::SetAside, Self::Unmanaged, Self::Free];

    pub(super) const fn letter(self) -> char {
        match self {
            Self::Held => 'H',
            Self::Cached => 'C',
            Self::SetAside => 'S',
            Self::Unmanaged => 'U',
            Self::Free => '.',
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Cached => "cached",
            Self::SetAside => "set aside",
            Self::Unmanaged => "unmanaged",
            Self::Free => "free",
        }
    }

    pub(super) fn style(self, theme: Theme) -> Style {
        match self {
            Self::Held => theme.filled(Color::Green),
            Self::Cached => theme.filled(Color::Cyan),
            Self::SetAside => theme.filled(Color::Yellow),
            Self::Unmanaged => theme.filled(Color::Magenta),
            Self::Free => theme.faint(),
        }
    }

    /// Returns the bytes of this kind as they are told; none where nobody says. What is cached is held too.
    pub(super) const fn bytes(self, ledger: &LedgerState) -> Option<u64> {
        match self {
            Self::Held => Some(ledger.held),
            Self::Cached => ledger.cached,
            Self::SetAside => Some(ledger.undrawn),
            Self::Unmanaged => Some(ledger.unmanaged),
            Self::Free => Some(ledger.free),
        }
    }
}

/// Returns the bytes of each part of a bar: what is cached is shown within what is held.
fn parts(ledger: &LedgerState) -> [u64; 5] {
    let cached = ledger.cached.unwrap_or(0).min(ledger.held);
    [ledger.held - cached, cached, ledger.undrawn, ledger.unmanaged, ledger.free]
}

/// Shares columns out in proportion. What is there has at least one, if there are enough.
pub(super) fn share(parts: [u64; 5], columns: usize) -> [usize; 5] {
    let all: u128 = parts.iter().map(|&part| u128::from(part)).sum();
    if all == 0 {
        return [0, 0, 0, 0, columns];
    }
    let exact = parts.map(|part| u128::from(part) * columns as u128);
    let mut shares = [0; 5];
    for (share, (part, exact)) in shares.iter_mut().zip(parts.into_iter().zip(exact)) {
        *share = usize::try_from(exact / all).unwrap_or(columns).max(usize::from(part > 0));
    }
    while shares.iter().sum::<usize>() > columns {
        let largest = (0..5).max_by_key(|&at| shares[at]).unwrap_or(0);
        shares[largest] -= 1;
    }
    while shares.iter().sum::<usize>() < columns {
        let missing = |at: usize| exact[at].saturating_sub(shares[at] as u128 * all);
        let most = (0..5).max_by_key(|&at| missing(at)).unwrap_or(4);
        shares[most] += 1;
    }
    shares
}

/// Draws the bar in so many columns, brackets included. The limit is marked where it lies in what is free.
pub(super) fn spans(ledger: &LedgerState, columns: usize, theme: Theme) -> Vec<Span<'static>> {
    let inner = columns.saturating_sub(2);
    let shares = share(parts(ledger), inner);
    let mut spans = vec![Span::raw("[")];
    for (kind, count) in Kind::ALL.into_iter().zip(shares) {
        let letters = match kind {
            Kind::Free => free(ledger, inner, count),
            _ => kind.letter().to_string().repeat(count),
        };
        spans.push(Span::styled(letters, kind.style(theme)));
    }
    spans.push(Span::raw("]"));
    spans
}

/// Draws what is free, in the last columns of a bar, with a mark at the limit of what all may hold.
fn free(ledger: &LedgerState, inner: usize, count: usize) -> String {
    let mut letters = vec![Kind::Free.letter(); count];
    if ledger.limit < ledger.total {
        let at = u128::from(ledger.limit) * inner as u128 / u128::from(ledger.total);
        let at = usize::try_from(at).ok().and_then(|at| at.checked_sub(inner - count));
        if let Some(letter) = at.and_then(|at| letters.get_mut(at)) {
            *letter = '|';
        }
    }
    letters.into_iter().collect()
}

/// Returns what the letters mean.
pub(super) fn legend(theme: Theme) -> Vec<Span<'static>> {
    let kind = |kind: Kind| Span::styled(format!("{} {}", kind.letter(), kind.name()), theme.faint());
    Kind::ALL.into_iter().map(kind).chain([Span::styled("| limit", theme.faint())]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn m1_a_bar_shows_what_is_there_and_nothing_else(parts: [u64; 5], columns in 0usize..200) {
            let shares = share(parts, columns);
            prop_assert_eq!(shares.iter().sum::<usize>(), columns);
            let kinds = parts.iter().filter(|&&part| part > 0).count();
            for (part, share) in parts.into_iter().zip(shares) {
                prop_assert!(part > 0 || share == 0 || kinds == 0);
                prop_assert!(part == 0 || share > 0 || columns < kinds);
            }
        }
    }

    #[test]
    fn what_is_cached_is_a_part_of_what_is_held() {
        let ledger = LedgerState {
            total: 20,
            limit: 19,
            held: 10,
            cached: Some(4),
            undrawn: 2,
            unmanaged: 2,
            free: 6,
            ..LedgerState::default()
        };
        let text: String = spans(&ledger, 22, Theme::default()).iter().map(|span| span.content.clone()).collect();
        assert_eq!(text, "[HHHHHHCCCCSSUU.....|]");
    }
}

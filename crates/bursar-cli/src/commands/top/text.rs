//! Text in the columns of a terminal: its width, cut, padded, wrapped, and put beside each other.

use ratatui::style::Style;
use ratatui::text::{Line, Span};

/// The character that ends a text that was cut.
const CUT: char = '~';

/// Returns the columns that a text takes.
pub(super) fn width(text: &str) -> usize {
    graphemes(text).iter().map(|grapheme| Span::raw(grapheme.as_str()).width()).sum()
}

fn graphemes(text: &str) -> Vec<String> {
    Span::raw(text).styled_graphemes(Style::new()).map(|grapheme| grapheme.symbol.to_owned()).collect()
}

/// Cuts a text that takes more columns than these, and marks that.
pub(super) fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let (mut shown, mut left) = (String::new(), columns.saturating_sub(1));
    for grapheme in graphemes(text) {
        let width = Span::raw(grapheme.as_str()).width();
        if width > left {
            break;
        }
        shown.push_str(&grapheme);
        left -= width;
    }
    if columns > 0 {
        shown.push(CUT);
    }
    shown
}

/// Pads a text with blanks, behind it or, to the right, before it.
pub(super) fn pad(text: &str, columns: usize, to_the_right: bool) -> String {
    let blanks = " ".repeat(columns.saturating_sub(width(text)));
    if to_the_right { blanks + text } else { text.to_owned() + &blanks }
}

/// Wraps a text at blanks, and within words that are too long for a line.
pub(super) fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace().flat_map(|word| broken(word, columns)) {
        match lines.last_mut() {
            Some(line) if width(line) + 1 + width(&word) <= columns => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines
}

/// Breaks a word into pieces that fit.
fn broken(word: &str, columns: usize) -> Vec<String> {
    if width(word) <= columns {
        return vec![word.to_owned()];
    }
    let mut pieces = vec![String::new()];
    for grapheme in graphemes(word).into_iter().filter(|grapheme| width(grapheme) <= columns) {
        match pieces.last_mut() {
            Some(piece) if width(piece) + width(&grapheme) <= columns => piece.push_str(&grapheme),
            _ => pieces.push(grapheme),
        }
    }
    pieces
}

/// Puts parts beside each other, two blanks apart, on as many lines as they need. One that no line has room for is left
/// out, so that a number is shown whole or not at all.
pub(super) fn flow(parts: Vec<Span<'static>>, columns: usize) -> Vec<Line<'static>> {
    let mut lines: Vec<Line<'static>> = Vec::new();
    for part in parts.into_iter().filter(|part| width(&part.content) <= columns) {
        match lines.last_mut() {
            Some(line) if width(&text_of(line)) + 2 + width(&part.content) <= columns => {
                line.push_span(Span::raw("  "));
                line.push_span(part);
            }
            _ => lines.push(Line::from(part)),
        }
    }
    lines
}

/// Puts the first parts beside each other, as many as one line has room for.
pub(super) fn fit(parts: Vec<Span<'static>>, columns: usize) -> Line<'static> {
    let mut line = Line::default();
    let mut taken = 0;
    for part in parts {
        let gap = if taken == 0 { 0 } else { 2 };
        let after = taken + gap + width(&part.content);
        if after <= columns {
            line.push_span(Span::raw(" ".repeat(gap)));
            line.push_span(part);
            taken = after;
        }
    }
    line
}

/// Returns the text of a line without its styles.
pub(super) fn text_of(line: &Line<'_>) -> String {
    line.spans.iter().map(|span| span.content.as_ref()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!((width("日本"), cut("日本語", 5), cut("日本語", 4)), (4, "日本~".into(), "日~".into()));
        assert_eq!((pad("日", 4, false), pad("日", 4, true)), ("日  ".into(), "  日".into()));
    }

    #[test]
    fn long_words_are_broken_and_nothing_is_lost() {
        assert_eq!(wrap("see /dev/shm/ledger now", 8), ["see", "/dev/shm", "/ledger", "now"]);
    }

    #[test]
    fn numbers_are_whole_or_left_out() {
        let parts = || ["10 GiB", "a long part that fits nowhere", "2 GiB"].map(Span::raw).to_vec();
        assert_eq!(text_of(&fit(parts(), 13)), "10 GiB  2 GiB");
        assert_eq!(text_of(&fit(parts(), 12)), "10 GiB");
        assert_eq!(flow(parts(), 8).iter().map(text_of).collect::<Vec<_>>(), ["10 GiB", "2 GiB"]);
    }

    proptest! {
        #[test]
        fn nothing_is_wider_than_its_columns(text in "\\PC*", columns in 0usize..40) {
            prop_assert!(width(&cut(&text, columns)) <= columns);
            prop_assert!(wrap(&text, columns).iter().all(|line| width(line) <= columns));
            prop_assert_eq!(width(&pad(&cut(&text, columns), columns, true)), columns);
        }
    }
}

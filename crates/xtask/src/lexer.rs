//! Just enough of Rust's lexical grammar to separate code, comments and literals.
//!
//! Nothing here parses: the rules that use it search for words and braces. The two masks of a file
//! have the length and the line breaks of the text they come from, so an offset into one is an
//! offset into all three.

use std::ops::Range;

/// A file's text twice: once with everything but its code blanked, once with everything but its comments.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Masks {
    /// The code, without comments and without string and character literals.
    pub(crate) code: String,
    /// The comments, documentation included.
    pub(crate) comments: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

/// Splits Rust source into its masks. Source that does not lex gives wrong masks, never a panic.
pub(crate) fn mask(text: &str) -> Masks {
    let mut masks = Masks::default();
    let mut rest = text;
    while !rest.is_empty() {
        let (kind, len) = first_piece(rest);
        let (piece, tail) = rest.split_at(len);
        copy_or_blank(&mut masks.code, piece, kind == Kind::Code);
        copy_or_blank(&mut masks.comments, piece, kind == Kind::Comment);
        rest = tail;
    }
    masks
}

fn copy_or_blank(mask: &mut String, piece: &str, copy: bool) {
    if copy {
        mask.push_str(piece);
    } else {
        mask.extend(piece.bytes().map(|b| if b == b'\n' { '\n' } else { ' ' }));
    }
}

fn first_piece(text: &str) -> (Kind, usize) {
    let first = text.chars().next().expect("a piece is not empty");
    let word = word_len(text);
    if text.starts_with("//") {
        (Kind::Comment, text.find('\n').unwrap_or(text.len()))
    } else if text.starts_with("/*") {
        (Kind::Comment, block_comment_len(text))
    } else if first == '"' {
        (Kind::Literal, quoted_len(text, '"'))
    } else if first == '\'' && is_char_literal(text) {
        (Kind::Literal, quoted_len(text, '\''))
    } else if matches!(&text[..word], "r" | "br" | "cr") {
        match raw_string_len(&text[word..]) {
            Some(len) => (Kind::Literal, word + len),
            None => (Kind::Code, word),
        }
    } else {
        (Kind::Code, word.max(first.len_utf8()))
    }
}

/// Returns the length of the block comment that `text` starts with. Block comments nest.
fn block_comment_len(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        match text.as_bytes()[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// Returns the length of a literal that starts with `quote` and ends at the next one that no backslash escapes.
fn quoted_len(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

/// Returns the length of `#"…"#`, with any number of `#`, or `None` if no raw string starts here (`r#type`).
fn raw_string_len(text: &str) -> Option<usize> {
    let hashes = text.len() - text.trim_start_matches('#').len();
    let body = text[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", &text[..hashes]);
    let end = body.find(&close).map_or(body.len(), |at| at + close.len());
    Some(hashes + 1 + end)
}

/// Returns whether a quote opens a character (`'x'`, `'\n'`) and not a lifetime (`'static`).
fn is_char_literal(text: &str) -> bool {
    let mut chars = text.chars().skip(1);
    match chars.next() {
        Some('\\') => true,
        Some(_) => chars.next() == Some('\''),
        None => false,
    }
}

fn is_word_char(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

fn word_len(text: &str) -> usize {
    text.find(|c| !is_word_char(c)).unwrap_or(text.len())
}

/// Returns the words of `text`, each with its offset.
pub(crate) fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        at += text[at..].find(is_word_char)?;
        let start = at;
        at += word_len(&text[at..]);
        Some((start, &text[start..at]))
    })
}

/// Returns the offsets of `word` where it is a whole word.
pub(crate) fn offsets_of<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    words(text).filter(move |&(_, found)| found == word).map(|(at, _)| at)
}

/// Returns the range from the first `{` at or after `from` to its closing brace, both included. Without a
/// brace the range is empty; without a closing one it ends with the text.
pub(crate) fn braced(code: &str, from: usize) -> Range<usize> {
    let open = code[from..].find('{').map_or(code.len(), |at| from + at);
    let mut depth = 0_usize;
    for (at, byte) in code[open..].bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            return open..open + at + 1;
        }
    }
    open..code.len()
}

/// Returns the text between the end of the previous item and `item`: its attributes and visibility, blanks included.
pub(crate) fn preamble(code: &str, item: usize) -> &str {
    let start = code[..item].rfind([';', '{', '}']).map_or(0, |at| at + 1);
    &code[start..item]
}

/// Returns `text` without white space.
pub(crate) fn compact(text: &str) -> String {
    text.split_whitespace().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        mask(text).code
    }

    #[test]
    fn masks_keep_length_and_lines() {
        let text = "fn é() {} // ünïcode\nlet s = \"a\nb\"; /* x\n*/ 'é'";
        let masks = mask(text);
        for mask in [&masks.code, &masks.comments] {
            assert_eq!(mask.len(), text.len());
            assert_eq!(mask.lines().count(), text.lines().count());
        }
        assert!(masks.comments.contains("// ünïcode"));
    }

    #[test]
    fn comments_are_not_code() {
        assert_eq!(code("a // unsafe\nb").trim_end(), "a          \nb");
        assert_eq!(compact(&code("a /* x /* unsafe */ y */ b")), "ab");
        assert_eq!(compact(&mask("a /* b */ c").comments), "/*b*/");
    }

    #[test]
    fn literals_are_not_code() {
        assert_eq!(compact(&code(r#"f("unsafe \" // ", 1)"#)), "f(,1)");
        assert_eq!(compact(&code(r###"f(r#"unsafe " "#, br"x", 2)"###)), "f(,,2)");
        assert_eq!(compact(&code(r"f('\'', '\u{41}', '{', b'x')")), "f(,,,b)");
    }

    #[test]
    fn lifetimes_and_raw_identifiers_are_code() {
        assert_eq!(code("fn f<'a>(x: &'a str, r#type: u8)"), "fn f<'a>(x: &'a str, r#type: u8)");
    }

    #[test]
    fn unfinished_source_ends_quietly() {
        for text in ["\"abc", "/* abc", "r#\"abc", "'", "'\\", "{ {"] {
            assert_eq!(code(text).len(), text.len());
        }
    }

    #[test]
    fn words_carry_their_offsets() {
        let found: Vec<_> = words("unsafe_code(unsafe)").collect();
        assert_eq!(found, [(0, "unsafe_code"), (12, "unsafe")]);
        assert_eq!(offsets_of("unsafe_code(unsafe)", "unsafe").collect::<Vec<_>>(), [12]);
    }

    #[test]
    fn braces_are_matched() {
        let code = "mod a { fn b() {} } mod c {";
        assert_eq!(&code[braced(code, 0)], "{ fn b() {} }");
        assert_eq!(&code[braced(code, 19)], "{");
        assert_eq!(braced("none", 0), 4..4);
    }
}

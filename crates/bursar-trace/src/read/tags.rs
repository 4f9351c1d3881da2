//! The tags of a trace, each interned once.

use bursar_core::AllocTag;
use std::collections::HashMap;

/// The number of tags that are interned for one trace; allocations with further ones are untagged. Interning lasts as long
/// as the process, so a file that names every allocation differently would cost its length for good.
const MAX_TAGS: usize = 1 << 16;

/// The length in bytes to which tags are cut, at a character boundary.
const MAX_NAME: usize = 256;

/// Turns names into tags. Rows often repeat their neighbours, so the last lookup is cached.
#[derive(Debug, Default)]
pub(crate) struct TagInterner {
    known: HashMap<Box<[u8]>, AllocTag>,
    last: Option<(Box<[u8]>, AllocTag)>,
}

impl TagInterner {
    pub(crate) fn get(&mut self, name: &[u8]) -> AllocTag {
        match &self.last {
            Some((last, tag)) if **last == *name => *tag,
            _ => {
                let tag = self.look_up(name);
                self.last = Some((name.into(), tag));
                tag
            }
        }
    }

    fn look_up(&mut self, name: &[u8]) -> AllocTag {
        if let Some(&tag) = self.known.get(name) {
            return tag;
        }
        if self.known.len() >= MAX_TAGS {
            return AllocTag::UNTAGGED;
        }
        let tag = AllocTag::intern(cut(&String::from_utf8_lossy(name)));
        self.known.insert(name.into(), tag);
        tag
    }
}

fn cut(text: &str) -> &str {
    let end = (0..=text.len().min(MAX_NAME)).rfind(|&at| text.is_char_boundary(at));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_at_a_character_and_the_name_of_no_tag_is_one() {
        let mut tags = TagInterner::default();
        assert_eq!(tags.get(b"untagged"), AllocTag::UNTAGGED);
        assert_eq!(tags.get(b"weights"), AllocTag::intern("weights"));
        assert_eq!(tags.get("é".repeat(200).as_bytes()).name(), "é".repeat(128));
        assert_eq!(tags.get(format!("x{}", "é".repeat(200)).as_bytes()).name(), format!("x{}", "é".repeat(127)));
    }
}

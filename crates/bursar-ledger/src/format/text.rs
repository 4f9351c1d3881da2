//! Text stored in words.

use super::LETTERS;

/// Packs text into `N` words of 8 bytes; what does not fit is cut off at a character boundary.
pub(crate) fn packed<const N: usize>(text: &str) -> [u64; N] {
    in_words(text, 8)
}

/// Encodes a name as `N` values of [`LETTERS`] bytes, which can be sealed; what does not fit is cut off at a character
/// boundary.
pub(crate) fn encode_name<const N: usize>(text: &str) -> [u64; N] {
    in_words(text, LETTERS)
}

fn in_words<const N: usize>(text: &str, width: usize) -> [u64; N] {
    let mut end = text.len().min(N * width);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut bytes = text.as_bytes()[..end].chunks(width);
    std::array::from_fn(|_| {
        let mut word = [0; 8];
        let chunk = bytes.next().unwrap_or_default();
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    })
}

/// Returns the text that was [packed] into `words`; bytes that are no UTF-8 become replacement characters.
pub(crate) fn unpacked(words: impl IntoIterator<Item = u64>) -> String {
    let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the name that [`encode_name`] stored in `words`; bytes that are no UTF-8 become replacement characters.
pub(crate) fn decode_name(words: impl IntoIterator<Item = u64>) -> String {
    let letters = words.into_iter().flat_map(|word| word.to_le_bytes().into_iter().take(LETTERS));
    let bytes: Vec<u8> = letters.take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_packing_and_are_cut_between_characters() {
        assert_eq!(unpacked(packed::<4>("bursar")), "bursar");
        assert_eq!(unpacked(packed::<1>("abcdefgä")), "abcdefg");
        assert_eq!(unpacked(packed::<2>("")), "");
        assert_eq!(decode_name(encode_name::<4>("bursar-ledger")), "bursar-ledger");
        assert_eq!(decode_name(encode_name::<1>("abcdefä")), "abcdef");
    }
}

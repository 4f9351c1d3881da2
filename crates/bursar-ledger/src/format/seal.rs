//! Values stored so that a bit which changes by itself is noticed.
//!
//! A value is stored as its product with [`A`], 227. Sums and differences of products are products, so a stored value can be
//! counted up and down by one compare-and-swap. No two bits that change together turn one product into another, since
//! neither `2^i + 2^j` nor `2^i - 2^j` is a product for any two positions in a word. Dividing is multiplying by the inverse
//! of `A` modulo `2^64`: a word that is no product becomes larger than any value that is stored.
//!
//! A charge checks its word at the price of one multiplication. A checksum for each row would cost a second write for every
//! change, and could not cover the words that change without the lock.

/// The factor of every stored value. Two is a primitive root of it, and 2^113 the first power that is one less than a product.
const A: u64 = 227;
const INVERSE: u64 = 0x1b10_ea92_9ba1_44cb;
/// The largest value that can be sealed: a little more than 56 bits.
const SEALED_MAX: u64 = u64::MAX / A;

const _: () = assert!(A.wrapping_mul(INVERSE) == 1, "the inverse of A modulo 2^64");
const _: () = {
    // The distances between two bits of a word.
    let (mut power, mut distance) = (1, 0);
    while distance < 63 {
        power = power * 2 % A;
        distance += 1;
        assert!(power != 1 && power != A - 1, "two bits at this distance would change a product into another");
    }
};

/// Returns the word that stores a value; one above [`SEALED_MAX`] is stored as that.
#[inline(always)]
pub const fn sealed(value: u64) -> u64 {
    if value > SEALED_MAX { SEALED_MAX * A } else { value * A }
}

/// Returns the value stored in `word`, or `None` if the word is damaged.
#[inline(always)]
pub const fn unsealed(word: u64) -> Option<u64> {
    let value = quotient(word);
    if value <= SEALED_MAX { Some(value) } else { None }
}

/// Returns the value that a word is the product of, or a number above [`SEALED_MAX`] if it is none.
#[inline(always)]
pub(crate) const fn quotient(word: u64) -> u64 {
    word.wrapping_mul(INVERSE)
}

/// Returns the product of a value that need not fit, modulo 2^64: sums of such products are right where the sum of the
/// values fits.
#[inline(always)]
pub(crate) const fn product(value: u64) -> u64 {
    value.wrapping_mul(A)
}

/// Splits a generation into the part that has bits of its own in a node's word and the part that is added to the product
/// there.
pub(crate) const fn residue(generation: u64) -> (u64, u64) {
    (generation / A, generation % A)
}

/// Returns forty bits that change with any bit of `word`.
pub(crate) const fn digest(word: u64) -> u64 {
    word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l7_any_one_or_two_bits_that_change_are_noticed() {
        for value in [0, 1, 4096, 1 << 30, (1 << 48) - 1, SEALED_MAX] {
            let word = sealed(value);
            assert_eq!(unsealed(word), Some(value));
            for one in 0..64 {
                assert_eq!(unsealed(word ^ 1 << one), None, "{value}, bit {one}");
                assert_ne!(digest(word), digest(word ^ 1 << one), "{value}, bit {one}");
                for other in 0..one {
                    assert_eq!(unsealed(word ^ 1 << one ^ 1 << other), None, "{value}, bits {one} and {other}");
                }
            }
        }
        assert_eq!(unsealed(sealed(u64::MAX)), Some(SEALED_MAX));
    }
}

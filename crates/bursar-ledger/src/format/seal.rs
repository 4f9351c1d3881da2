//! Words that notice when a bit of them changes by itself.
//!
//! A value is stored as its product with [`A`]. Sums and differences of products are products, so values can be counted up
//! and down as they are stored; and no two bits that change together turn one product into another, since neither `2^i + 2^j`
//! nor `2^i - 2^j` is one for any two places of a word. Dividing is multiplying by the inverse of `A` modulo `2^64`: what is
//! no product becomes larger than any value that is stored.

/// The factor of every stored value. Two is a primitive root of it, and 2^113 the first power that is one less than a product.
const A: u64 = 227;
const INVERSE: u64 = 0x1b10_ea92_9ba1_44cb;
/// The largest value that can be sealed: a little more than 56 bits.
pub(crate) const SEALED_MAX: u64 = u64::MAX / A;

const _: () = assert!(A.wrapping_mul(INVERSE) == 1, "the inverse of A modulo 2^64");
const _: () = {
    // The distances at which two bits of a word can lie.
    let (mut power, mut distance) = (1, 0);
    while distance < 63 {
        power = power * 2 % A;
        distance += 1;
        assert!(power != 1 && power != A - 1, "two bits at this distance would change a product into another");
    }
};

/// A value as it is stored; one that is too large is cut.
#[inline(always)]
pub const fn sealed(value: u64) -> u64 {
    if value > SEALED_MAX { SEALED_MAX * A } else { value * A }
}

/// The value that is stored as `word`, unless it is damaged.
#[inline(always)]
pub const fn unsealed(word: u64) -> Option<u64> {
    let value = quotient(word);
    if value <= SEALED_MAX { Some(value) } else { None }
}

/// Returns the value a word is the product of, and a number above [`SEALED_MAX`] if it is none.
#[inline(always)]
pub(crate) const fn quotient(word: u64) -> u64 {
    word.wrapping_mul(INVERSE)
}

/// The product of a value that need not fit: sums of such products come out right where the sum of the values fits.
#[inline(always)]
pub(crate) const fn product(value: u64) -> u64 {
    value.wrapping_mul(A)
}

/// Splits a life into what has bits of its own in a node's word and what is added to the product there.
pub(crate) const fn residue(life: u64) -> (u64, u64) {
    (life / A, life % A)
}

/// Forty bits that change with any bit of `word`.
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

//! A fast hash for addresses and block numbers that come from files.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Builds hashers that fold a multiplication: addresses are multiples of large powers of two, which the product alone would
/// keep, and the fold brings the high half down. The seed differs between maps, so that no file can be written to collide.
#[derive(Clone, Debug)]
pub(crate) struct AddressState(u64);

impl Default for AddressState {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0u8))
    }
}

impl BuildHasher for AddressState {
    type Hasher = AddressHasher;

    fn build_hasher(&self) -> AddressHasher {
        AddressHasher(self.0)
    }
}

#[derive(Debug)]
pub(crate) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    fn write_u8(&mut self, byte: u8) {
        self.0 ^= u64::from(byte) << 56 | u64::from(byte);
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

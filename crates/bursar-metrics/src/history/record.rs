//! A sample as bytes, and back.
//!
//! ```text
//!  record   length (4 bytes) · the same, inverted (4) · payload · CRC-32 of the payload (4)
//!  payload  moment (8) · uuid · label · name · 1 if readable · figures (8 × 8) · 1 if cached is known · processes · tenants
//!  list     how many (1), then for each: pid (4) · name · bytes (8)
//!  text     length (2) · bytes
//! ```
//!
//! Numbers are little-endian. A length whose inverse does not agree is damage; one that promises more than the file has is a
//! record that was being written when the machine stopped.

use super::sample::Parties;
use super::{DeviceSample, Figures, PARTIES_MAX, Party, PartyKind, Share};

/// The most bytes of a payload.
const PAYLOAD_MAX: usize = 64 << 10;

/// A sample with the device that it is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) uuid: String,
    pub(super) label: String,
    pub(super) name: String,
    pub(super) sample: DeviceSample,
}

/// The result of reading a record at a place.
#[derive(Debug)]
pub(super) enum Found {
    /// A record, and the place after it.
    Whole(Box<Record>, usize),
    /// The beginning of a record that was never written to its end.
    Torn,
    /// Something else.
    Damaged,
}

/// Appends a record to `out`.
pub(super) fn write(out: &mut Vec<u8>, uuid: &str, label: &str, name: &str, sample: &DeviceSample) {
    let begins = out.len();
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&sample.at_ms.to_le_bytes());
    for text in [uuid, label, name] {
        put_text(out, text);
    }
    out.push(u8::from(sample.figures.is_some()));
    let figures = sample.figures.unwrap_or_default();
    let Figures { total, limit, held, undrawn, cached, unmanaged, waiting, refused } = figures;
    for figure in [total, limit, held, undrawn, cached.unwrap_or(0), unmanaged, waiting.into(), refused] {
        out.extend_from_slice(&figure.to_le_bytes());
    }
    out.push(u8::from(cached.is_some()));
    for shares in [&sample.processes, &sample.tenants] {
        out.push(u8::try_from(shares.len().min(PARTIES_MAX)).unwrap_or(0));
        for share in shares.iter().take(PARTIES_MAX) {
            out.extend_from_slice(&share.party.pid.to_le_bytes());
            put_text(out, &share.party.name);
            out.extend_from_slice(&share.bytes.to_le_bytes());
        }
    }
    let length = u32::try_from(out.len() - begins - 8).unwrap_or(0);
    let check = crc32(&out[begins + 8..]);
    out[begins..begins + 4].copy_from_slice(&length.to_le_bytes());
    out[begins + 4..begins + 8].copy_from_slice(&(!length).to_le_bytes());
    out.extend_from_slice(&check.to_le_bytes());
}

/// Appends a text of at most 1,024 bytes; a longer one is cut between characters.
fn put_text(out: &mut Vec<u8>, text: &str) {
    let end = (0..=text.len().min(1024)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    let text = &text[..end];
    out.extend_from_slice(&u16::try_from(text.len()).unwrap_or(0).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Reads the record at `at`.
pub(super) fn read(bytes: &[u8], at: usize, parties: &mut Parties) -> Found {
    let mut head = Reader(&bytes[at..]);
    let (Some(length), Some(inverse)) = (head.u32(), head.u32()) else { return Found::Torn };
    if length != !inverse || length as usize > PAYLOAD_MAX {
        return Found::Damaged;
    }
    let (Some(payload), Some(check)) = (head.take(length as usize), head.u32()) else { return Found::Torn };
    if crc32(payload) != check {
        return Found::Damaged;
    }
    match record(&mut Reader(payload), parties) {
        Some(record) => Found::Whole(Box::new(record), at + length as usize + 12),
        None => Found::Damaged,
    }
}

fn record(from: &mut Reader<'_>, parties: &mut Parties) -> Option<Record> {
    let at_ms = from.u64()?;
    let (uuid, label, name) = (from.text()?, from.text()?, from.text()?);
    let is_readable = from.u8()? == 1;
    let [total, limit, held, undrawn, cached, unmanaged, waiting, refused] = from.words::<8>()?;
    let cached = (from.u8()? == 1).then_some(cached);
    let waiting = u32::try_from(waiting).ok()?;
    let figures = Figures { total, limit, held, undrawn, cached, unmanaged, waiting, refused };
    let mut shares = |kind: PartyKind| -> Option<Box<[Share]>> {
        let count = from.u8()?;
        let share = |_| {
            let (pid, name, bytes) = (from.u32()?, from.text()?, from.u64()?);
            Some(Share { party: parties.intern(Party { kind, pid, name }), bytes })
        };
        (0..count).map(share).collect()
    };
    let (processes, tenants) = (shares(PartyKind::Process)?, shares(PartyKind::Tenant)?);
    let sample = DeviceSample { at_ms, figures: is_readable.then_some(figures), processes, tenants };
    from.0.is_empty().then_some(Record { uuid, label, name, sample })
}

/// The rest of some bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn words<const N: usize>(&mut self) -> Option<[u64; N]> {
        let mut words = [0; N];
        for word in &mut words {
            *word = self.u64()?;
        }
        Some(words)
    }

    fn text(&mut self) -> Option<String> {
        let length = self.array().map(u16::from_le_bytes)?;
        let bytes = self.take(length.into())?;
        String::from_utf8(bytes.to_vec()).ok()
    }
}

const CRC_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { value >> 1 ^ 0xedb8_8320 } else { value >> 1 };
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
};

/// Returns the CRC-32 that gzip and Ethernet use.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| CRC_TABLE[usize::from(crc as u8 ^ byte)] ^ crc >> 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_usual_one() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }
}

//! Checks that readers never panic, hang or run anything, whatever the bytes: arbitrary ones, and damaged good files.

use bursar_sim::Random;
use bursar_trace::{bundled, read_from, write_csv, write_jsonl, write_torch_snapshot};
use proptest::prelude::*;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

/// Returns good files of every format, small enough to be damaged often.
fn seeds() -> Vec<Vec<u8>> {
    let folder = format!("{}/tests/fixtures", env!("CARGO_MANIFEST_DIR"));
    let fixture = |name: &str| std::fs::read(format!("{folder}/{name}")).expect("a fixture");
    let mut trace = bundled();
    trace.events.truncate(60);
    trace.blocks = 60;
    let (mut csv, mut json, mut torch) = (Vec::new(), Vec::new(), Vec::new());
    write_csv(&trace, &mut csv).expect("memory");
    write_jsonl(&trace, &mut json).expect("memory");
    write_torch_snapshot(&trace, &mut torch).expect("memory");
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&torch).expect("memory");
    let packed = packed.finish().expect("memory");
    vec![
        csv,
        json,
        torch,
        packed,
        fixture("rmm.csv"),
        fixture("rmm.csv.gz"),
        old_pickle("0"),
        old_pickle("1"),
        fixture("code-0.pickle"),
        fixture("code-2.pickle"),
        fixture("code-4.pickle"),
    ]
}

/// Returns the beginning of a snapshot in one of the first protocols, cut after a few entries.
fn old_pickle(protocol: &str) -> Vec<u8> {
    let path = format!("{}/tests/fixtures/snapshot-{protocol}.pickle.gz", env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::File::open(path).expect("a fixture");
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(file).take(8000).read_to_end(&mut bytes).expect("a gzip");
    bytes
}

/// Bytes that mean something to one of the readers.
const WORDS: [&[u8]; 31] = [
    b",",
    b"\n",
    b"\r\n",
    b"\"",
    b"-1",
    b"18446744073709551616",
    b"0x",
    b"(nil)",
    b"allocate",
    b"free",
    b"{",
    b"}",
    b"[",
    b"\"bytes\":",
    b"\x80\x04",
    b"\x94",
    b"h\x00",
    b"]",
    b"e",
    b"u",
    b"(",
    b"\x8a\x09",
    b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff",
    b".",
    b"V\\u00e9\n",
    b"S'\\x41'\n",
    b"I01\n",
    b"L-9223372036854775809L\n",
    b"p0\n",
    b"g0\n",
    b"(dp1\n",
];

/// Damages `bytes` a few times: bits, bytes, words, cuts, repeats and pieces of another file.
fn damage(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    for _ in 0..=random.index(6) {
        let at = random.index(bytes.len() + 1);
        let to = (at + random.index(40)).min(bytes.len());
        match random.index(8) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.index(8),
            1 if at < bytes.len() => bytes[at] = random.next_u64() as u8,
            2 => drop(bytes.splice(at..at, WORDS[random.index(WORDS.len())].iter().copied())),
            3 => drop(bytes.drain(at..to)),
            4 => bytes.truncate(at),
            5 => drop(bytes.splice(at..at, bytes[at..to].repeat(1 + random.index(4)))),
            6 => {
                let from = random.index(other.len());
                let piece = &other[from..(from + random.index(60)).min(other.len())];
                drop(bytes.splice(at..to, piece.iter().copied()));
            }
            _ => bytes.extend_from_slice(WORDS[random.index(WORDS.len())]),
        }
    }
}

/// Reads a trace, and if that succeeds writes it in every format and reads it again.
fn exercise(bytes: &[u8]) {
    let trace = match read_from(bytes, "fuzzed") {
        Ok(trace) => trace,
        Err(error) => return assert!(error.to_string().starts_with("fuzzed: ")),
    };
    let (peak, strict) = (trace.peak_live(), trace.strict().is_ok());
    assert_eq!(strict, trace.unknown_frees.is_empty() && trace.missing_frees.is_empty());
    let mut written = Vec::new();
    if write_csv(&trace, &mut written).is_ok() && !trace.events.is_empty() {
        let again = read_from(&written[..], "again").expect("what we wrote");
        assert_eq!((again.peak_live(), again.events.len()), (peak, trace.events.len()));
    }
    let _ = write_torch_snapshot(&trace, std::io::sink());
}

fn run(seed: u64, runs: Option<u64>, limit: Duration) -> u64 {
    let (seeds, started) = (seeds(), Instant::now());
    let mut done = 0;
    while runs.is_none_or(|runs| done < runs) && started.elapsed() < limit {
        let case = seed.wrapping_add(done);
        let mut random = Random::new(case);
        let mut bytes = seeds[random.index(seeds.len())].clone();
        damage(&mut bytes, &seeds[random.index(seeds.len())], &mut random);
        let outcome = std::panic::catch_unwind(|| exercise(&bytes));
        assert!(outcome.is_ok(), "case {case} panics on {:?}", String::from_utf8_lossy(&bytes));
        done += 1;
    }
    done
}

#[test]
fn damaged_files_never_panic() {
    run(1, Some(3000), Duration::from_secs(60));
}

/// `cargo test --release -p bursar-trace --test fuzz -- --ignored --nocapture`; `BURSAR_FUZZ_SEED` repeats a run.
#[test]
#[ignore = "takes ten minutes"]
#[allow(clippy::print_stdout)]
fn fuzz_readers_for_ten_minutes() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
    let seed = std::env::var("BURSAR_FUZZ_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(now);
    println!("BURSAR_FUZZ_SEED={seed}");
    let done = run(seed, None, Duration::from_secs(600));
    println!("{done} cases");
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        exercise(&bytes);
        exercise(&[b"Thread,Time,Action,Pointer,Size,Stream\n", &bytes[..]].concat());
        exercise(&[b"{", &bytes[..]].concat());
        exercise(&[b"\x80\x04", &bytes[..]].concat());
        exercise(&[b"(dp0\n", &bytes[..]].concat());
        exercise(&[b"}q\0(", &bytes[..]].concat());
        exercise(&[b"\x1f\x8b\x08\0\0\0\0\0\0\xff", &bytes[..]].concat());
    }
}

/// Returns a file of every format that is short enough to be cut at every byte and to have every bit flipped.
fn short() -> Vec<Vec<u8>> {
    let mut trace = bundled();
    trace.events.truncate(4);
    trace.blocks = 4;
    for (event, name) in trace.events.iter_mut().zip(["weights", "a \"b\",\nc", "", "é\\"]) {
        event.tag = bursar_core::AllocTag::intern(name);
    }
    let (mut csv, mut json, mut torch) = (Vec::new(), Vec::new(), Vec::new());
    write_csv(&trace, &mut csv).expect("memory");
    write_jsonl(&trace, &mut json).expect("memory");
    write_torch_snapshot(&trace, &mut torch).expect("memory");
    let old =
        b"(dp0\nVdevice_traces\np1\n(lp2\n(lp3\n(dp4\nVaction\np5\nValloc\np6\nsVaddr\np7\nL140024523784192L\nsVsize\n\
                p8\nI512\nsVstream\np9\nI0\nsVtime_us\np10\nF1.5\nsVuser_metadata\np11\nVa\\u000ab\np12\nsaas."
            .to_vec();
    let packed = [&csv, &json, &torch, &old].map(|bytes| {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(bytes).expect("memory");
        packed.finish().expect("memory")
    });
    [vec![csv, json, torch, old], packed.to_vec()].concat()
}

#[test]
fn files_cut_anywhere_and_with_any_bit_turned_over_never_panic() {
    for whole in short() {
        exercise(&whole);
        assert!(read_from(&whole[..], "whole").is_ok());
        for at in 0..whole.len() {
            exercise(&whole[..at]);
            let mut damaged = whole.clone();
            for bit in 0..8 {
                damaged[at] ^= 1 << bit;
                exercise(&damaged);
                damaged[at] ^= 1 << bit;
            }
        }
    }
}

/// A gzipped file has a checksum: every cut and every flipped bit is noticed, except for bits of the header that say when and
/// where it was made.
#[test]
fn a_damaged_gzip_is_never_taken_for_the_whole() {
    for whole in short().into_iter().skip(4) {
        let good = read_from(&whole[..], "whole").expect("a trace");
        for at in 0..whole.len() {
            assert!(read_from(&whole[..at], "cut").is_err(), "cut at {at}");
            let is_told = (4..10).contains(&at);
            for bit in (0..8).filter(|_| !is_told) {
                let mut damaged = whole.clone();
                damaged[at] ^= 1 << bit;
                let read = read_from(&damaged[..], "whole");
                assert!(read.is_err() || read.is_ok_and(|read| read == good), "bit {bit} of byte {at}");
            }
        }
    }
}

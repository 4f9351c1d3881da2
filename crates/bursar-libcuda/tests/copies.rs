//! K1 for copies and fills: memory of every kind, under every name that a program can give it.
#![allow(unsafe_code)]

mod rig;

use bursar_sim::Random;
use rig::{INVALID_VALUE, SUCCESS};
use std::ffi::c_int;

/// The bytes of every piece of memory.
const SIZE: u64 = 4096;

/// The kinds of memory, of which there is one piece each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Linear,
    LinearOfOther,
    Managed,
    Pinned,
    Registered,
    Pageable,
}

/// A piece of memory, and the bytes that it should have.
struct Piece {
    kind: Kind,
    at: u64,
    expected: Vec<u8>,
}

/// The way in which a call takes one side; the numbers are those of `CUmemorytype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    Host = 1,
    Device = 2,
    Unified = 4,
}

impl Kind {
    fn is_linear(self) -> bool {
        matches!(self, Self::Linear | Self::LinearOfOther)
    }

    /// Returns whether memory of this kind may be named so.
    fn may_be(self, named: Named) -> bool {
        match named {
            Named::Host => !self.is_linear(),
            Named::Device => self != Self::Pageable,
            Named::Unified => true,
        }
    }
}

/// Makes the primary context of a device current. Returns it.
fn enter(device: i32) -> u64 {
    let mut context = 0u64;
    ok!(cuInit(0u64));
    ok!(cuDevicePrimaryCtxRetain(&mut context, device));
    ok!(cuCtxSetCurrent(context));
    context
}

/// Returns host memory that lasts as long as the process.
fn leaked() -> u64 {
    let memory: &'static mut [u8] = vec![0; SIZE as usize].leak();
    memory.as_mut_ptr().expose_provenance() as u64
}

fn piece(kind: Kind) -> Piece {
    let mut at = 0u64;
    match kind {
        Kind::Linear => ok!(cuMemAlloc_v2(&mut at, SIZE)),
        Kind::LinearOfOther => {
            enter(1);
            ok!(cuMemAlloc_v2(&mut at, SIZE));
            enter(0);
        }
        Kind::Managed => ok!(cuMemAllocManaged(&mut at, SIZE, 1u64)),
        Kind::Pinned => ok!(cuMemHostAlloc(&mut at, SIZE, 0u64)),
        Kind::Registered => {
            at = leaked();
            ok!(cuMemHostRegister_v2(at, SIZE, 0u64));
        }
        Kind::Pageable => at = leaked(),
    }
    if kind.is_linear() {
        ok!(cuMemsetD8_v2(at, 0u64, SIZE));
    }
    Piece { kind, at, expected: vec![0; SIZE as usize] }
}

/// Returns the bytes of a piece.
fn bytes_of(piece: &Piece) -> Vec<u8> {
    let mut bytes = vec![0u8; SIZE as usize];
    if piece.kind.is_linear() {
        ok!(cuMemcpyDtoH_v2(bytes.as_mut_ptr(), piece.at, SIZE));
    } else {
        let memory = std::ptr::with_exposed_provenance::<u8>(piece.at as usize);
        // SAFETY: host memory of that size, which nobody changes: the context was waited for.
        unsafe { std::ptr::copy_nonoverlapping(memory, bytes.as_mut_ptr(), bytes.len()) };
    }
    bytes
}

/// A copy of rows between two sides, as `CUDA_MEMCPY2D`.
fn flat(to: (Named, u64), from: (Named, u64), pitch: u64, width: u64, height: u64) -> [u64; 16] {
    let side = |(named, at): (Named, u64)| match named {
        Named::Host => [0, 0, named as u64, at, 0, 0, pitch],
        _ => [0, 0, named as u64, 0, at, 0, pitch],
    };
    let mut copy = [0; 16];
    copy[..7].copy_from_slice(&side(from));
    copy[7..14].copy_from_slice(&side(to));
    copy[14..].copy_from_slice(&[width, height]);
    copy
}

/// Copies with a call that names the sides so. Returns its status.
fn copy(random: &mut Random, context: u64, to: (Named, u64), from: (Named, u64), bytes: u64, rows: u64) -> c_int {
    let (dst, src, is_async) = (to.1, from.1, random.below(2) == 0);
    match (to.0, from.0, random.below(3)) {
        (Named::Device, Named::Host, 0) if is_async => cu!(cuMemcpyHtoDAsync_v2(dst, src, bytes, 0u64)),
        (Named::Device, Named::Host, 0) => cu!(cuMemcpyHtoD_v2(dst, src, bytes)),
        (Named::Host, Named::Device, 0) if is_async => cu!(cuMemcpyDtoHAsync_v2(dst, src, bytes, 0u64)),
        (Named::Host, Named::Device, 0) => cu!(cuMemcpyDtoH_v2(dst, src, bytes)),
        (Named::Device, Named::Device, 0) if is_async => cu!(cuMemcpyDtoDAsync_v2(dst, src, bytes, 0u64)),
        (Named::Device, Named::Device, 0) => cu!(cuMemcpyDtoD_v2(dst, src, bytes)),
        (Named::Device, Named::Device, 1) if is_async => {
            cu!(cuMemcpyPeerAsync(dst, context, src, context, bytes, 0u64))
        }
        (Named::Device, Named::Device, 1) => cu!(cuMemcpyPeer(dst, context, src, context, bytes)),
        (Named::Unified, Named::Unified, 0) if is_async => cu!(cuMemcpyAsync(dst, src, bytes, 0u64)),
        (Named::Unified, Named::Unified, 0) => cu!(cuMemcpy(dst, src, bytes)),
        _ => {
            let copy = flat(to, from, bytes / rows, bytes / rows, rows);
            if is_async { cu!(cuMemcpy2DAsync_v2(&copy, 0u64)) } else { cu!(cuMemcpy2D_v2(&copy)) }
        }
    }
}

#[test]
fn k1_every_copy_takes_memory_of_every_kind_or_refuses_it() {
    const KINDS: [Kind; 6] =
        [Kind::Linear, Kind::LinearOfOther, Kind::Managed, Kind::Pinned, Kind::Registered, Kind::Pageable];
    const NAMES: [Named; 3] = [Named::Host, Named::Device, Named::Unified];
    let context = enter(0);
    let mut pieces = KINDS.map(piece);
    let mut random = Random::new(6);
    let (mut done, mut refused) = (0, 0);
    for turn in 0..4000 {
        let from = random.below(6) as usize;
        let to = (from + 1 + random.below(5) as usize) % 6;
        let (to_named, from_named) = (NAMES[random.below(3) as usize], NAMES[random.below(3) as usize]);
        let rows = 1 << (2 * random.below(2));
        let bytes = rows * (2 + random.below(SIZE / 8));
        let is_beyond = random.below(4) == 0;
        let mut start = |piece: &Piece| match piece.kind {
            // What a program says about memory of its own cannot be checked.
            Kind::Pageable => random.below(SIZE - bytes + 1),
            _ if is_beyond => SIZE - 1 - random.below(bytes - 1),
            _ => random.below(SIZE - bytes + 1),
        };
        let (src, dst) = (start(&pieces[from]), start(&pieces[to]));
        let fits = |at: u64| at + bytes <= SIZE;
        let is_allowed =
            pieces[to].kind.may_be(to_named) && pieces[from].kind.may_be(from_named) && fits(src) && fits(dst);
        let fresh: Vec<u8> = (0..bytes).map(|_| random.below(256) as u8).collect();
        if !pieces[from].kind.is_linear() && fits(src) {
            let memory = std::ptr::with_exposed_provenance_mut::<u8>((pieces[from].at + src) as usize);
            // SAFETY: within host memory that nobody else uses.
            unsafe { std::ptr::copy_nonoverlapping(fresh.as_ptr(), memory, fresh.len()) };
            pieces[from].expected[src as usize..][..fresh.len()].copy_from_slice(&fresh);
        }
        let rows = if is_allowed { rows } else { 1 };
        let (to_side, from_side) = ((to_named, pieces[to].at + dst), (from_named, pieces[from].at + src));
        let status = copy(&mut random, context, to_side, from_side, bytes, rows);
        let wanted = if is_allowed { SUCCESS } else { INVALID_VALUE };
        let (into, out_of) = (pieces[to].kind, pieces[from].kind);
        assert_eq!(
            status, wanted,
            "{turn}: {bytes} of {out_of:?}+{src} as {from_named:?} to {into:?}+{dst} as {to_named:?}"
        );
        ok!(cuCtxSynchronize());
        if is_allowed {
            let moved = pieces[from].expected[src as usize..][..bytes as usize].to_vec();
            pieces[to].expected[dst as usize..][..bytes as usize].copy_from_slice(&moved);
        }
        let counter = if is_allowed { &mut done } else { &mut refused };
        *counter += 1;
        assert!(bytes_of(&pieces[to]) == pieces[to].expected, "{turn}: {into:?} has other bytes");
    }
    assert!(done > 500 && refused > 500, "both happen: {done} copies, {refused} refusals");
}

#[test]
fn k1_copies_and_fills_of_nothing_end_at_once() {
    enter(0);
    let (linear, host) = (piece(Kind::Linear).at, piece(Kind::Pageable).at);
    for (width, height) in [(0, u64::MAX), (0, 1), (16, 0)] {
        ok!(cuMemsetD2D8_v2(linear, 512u64, 1u64, width, height));
        ok!(cuMemsetD2D32_v2(linear, 512u64, 1u64, width, height));
        ok!(cuMemcpy2D_v2(&flat((Named::Host, host), (Named::Device, linear), 128, width, height)));
    }
    // Of each side: the position, the level, the kind, the addresses, the pitch and the height of a slice.
    let deep = |pitch: u64, width: u64, height: u64, depth: u64| {
        let from = [0, 0, 0, 0, 2, 0, linear, 0, 0, pitch, 16];
        let to = [0, 0, 0, 0, 1, host, 0, 0, 0, pitch, 16];
        let mut copy = [0u64; 25];
        copy[..11].copy_from_slice(&from);
        copy[11..22].copy_from_slice(&to);
        copy[22..].copy_from_slice(&[width, height, depth]);
        cu!(cuMemcpy3D_v2(&copy))
    };
    assert_eq!(deep(16, 0, 16, u64::MAX), SUCCESS);
    assert_eq!(deep(16, 16, 0, u64::MAX), SUCCESS);
    assert_eq!(deep(0, 16, 1, u64::MAX), INVALID_VALUE, "slices in one place");
    let far = flat((Named::Host, host), (Named::Device, linear), u64::MAX, 16, 3);
    assert_eq!(cu!(cuMemcpy2D_v2(&far)), INVALID_VALUE, "beyond all addresses");
}

#[test]
fn k1_arrays_are_copied_from_and_to_addresses_of_any_device() {
    const ARRAY: u64 = 3;
    enter(0);
    let (mut array, mut back) = (0u64, vec![0u8; SIZE as usize]);
    for kind in [Kind::Linear, Kind::LinearOfOther, Kind::Managed, Kind::Pinned, Kind::Pageable] {
        let source = piece(kind);
        ok!(cuArrayCreate_v2(&mut array, &[64u64, 64, 1 << 32 | 1]));
        for named in [Named::Device, Named::Unified].into_iter().filter(|named| kind.may_be(*named)) {
            let value = kind as u8 * 2 + named as u8 + 1;
            ok!(cuMemcpy(source.at, [value; SIZE as usize].as_mut_ptr(), SIZE));
            let mut up = flat((Named::Host, 0), (named, source.at), 64, 64, 64);
            up[9..13].copy_from_slice(&[ARRAY, 0, 0, array]);
            ok!(cuMemcpy2D_v2(&up));
            ok!(cuMemcpy(source.at, [0; SIZE as usize].as_mut_ptr(), SIZE));
            let mut down = flat((named, source.at), (Named::Host, 0), 64, 64, 64);
            down[2..6].copy_from_slice(&[ARRAY, 0, 0, array]);
            ok!(cuMemcpy2D_v2(&down));
            ok!(cuMemcpy(back.as_mut_ptr(), source.at, SIZE));
            assert!(back.iter().all(|byte| *byte == value), "{kind:?} as {named:?}");
        }
        ok!(cuArrayDestroy(array));
    }
}

#[test]
fn k1_only_host_memory_that_is_there_can_be_registered() {
    const PAGE: usize = 4096;
    enter(0);
    let linear = piece(Kind::Linear).at;
    let register = |at: u64, bytes: usize| cu!(cuMemHostRegister_v2(at, bytes as u64, 0u64));
    assert_eq!(register(linear, PAGE), INVALID_VALUE, "memory of a device");
    assert_eq!(register(0x10000, PAGE), INVALID_VALUE, "no memory");
    assert_eq!(register(u64::MAX - 100, PAGE), INVALID_VALUE, "beyond all addresses");
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: new memory, at an address that the system chooses.
    let pages = unsafe { libc::mmap(std::ptr::null_mut(), 2 * PAGE, access, flags, -1, 0) };
    let at = pages.expose_provenance() as u64;
    let second = pages.wrapping_byte_add(PAGE);
    // SAFETY: the second page of the memory just made, which nobody uses.
    assert_eq!(unsafe { libc::munmap(second, PAGE) }, 0);
    assert_eq!(register(at, 2 * PAGE), INVALID_VALUE, "half of it");
    assert_eq!(register(at + 100, PAGE), INVALID_VALUE, "the last bytes");
    assert_eq!(register(at + 100, PAGE - 100), SUCCESS);
    ok!(cuMemHostUnregister(at + 100));
}

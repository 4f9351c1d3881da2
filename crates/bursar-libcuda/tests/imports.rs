//! K3 where a process imports physical memory of its own.
#![allow(unsafe_code)]

mod rig;

use rig::{INVALID_VALUE, SUCCESS, memory};

const PAGES: u64 = 8 << 20;

fn create() -> u64 {
    let mut pages = 0u64;
    // Pinned memory of the first device, with file descriptors for shareable handles.
    ok!(cuMemCreate(&mut pages, PAGES, &[1u64 << 32 | 1, 1, 0, 0], 0u64));
    pages
}

fn export(pages: u64) -> i32 {
    let mut descriptor = 0i32;
    ok!(cuMemExportToShareableHandle(&mut descriptor, pages, 1u64, 0u64));
    descriptor
}

fn import(descriptor: i32) -> u64 {
    let mut pages = 0u64;
    ok!(cuMemImportFromShareableHandle(&mut pages, descriptor, 1u64));
    pages
}

#[test]
fn k3_memory_that_a_process_imports_of_itself_counts_until_its_last_reference_is_gone() {
    let (mut context, mut at, mut word) = (0u64, 0u64, 0u32);
    ok!(cuInit(0u64));
    ok!(cuDevicePrimaryCtxRetain(&mut context, 0i32));
    ok!(cuCtxSetCurrent(context));
    let (before, _) = memory();
    let held = || before - memory().0;
    let made = create();
    let descriptor = export(made);
    let imported = [import(descriptor), import(descriptor)];
    assert_eq!(held(), PAGES, "the same memory");
    ok!(cuMemRelease(made));
    ok!(cuMemRelease(imported[0]));
    assert_eq!(held(), PAGES, "one reference is left");
    ok!(cuMemAddressReserve(&mut at, PAGES, 0u64, 0u64, 0u64));
    ok!(cuMemMap(at, PAGES, 0u64, imported[1], 0u64));
    // Read and written by the first device.
    ok!(cuMemSetAccess(at, PAGES, &[1u32, 0, 3], 1u64));
    ok!(cuMemsetD32_v2(at, 0xabcdu64, PAGES / 4));
    ok!(cuMemRelease(imported[1]));
    assert_eq!(held(), PAGES, "it is mapped");
    ok!(cuMemUnmap(at, PAGES));
    assert_eq!(held(), 0);
    assert_eq!(cu!(cuMemRelease(made)), INVALID_VALUE, "there are no more references");

    // The descriptor still has the bytes. Memory that has them counts.
    let again = import(descriptor);
    assert_eq!(held(), PAGES);
    ok!(cuMemMap(at, PAGES, 0u64, again, 0u64));
    ok!(cuMemSetAccess(at, PAGES, &[1u32, 0, 3], 1u64));
    ok!(cuMemcpyDtoH_v2(&mut word, at + PAGES - 4, 4u64));
    assert_eq!(word, 0xabcd);
    ok!(cuMemUnmap(at, PAGES));
    ok!(cuMemRelease(again));
    assert_eq!(held(), 0);
    assert_eq!(cu!(cuMemAddressFree(at, PAGES)), SUCCESS);
}

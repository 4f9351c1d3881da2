//! Finding a symbol in the objects that are loaded, without the loader's own functions: `dlsym` is what is looked for.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

const DT_NULL: i64 = 0;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_PLTRELSZ: i64 = 2;
const DT_JMPREL: i64 = 23;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_VERSYM: i64 = 0x6fff_fff0;
/// The kinds of relocation that hold the address of a function: in the table of calls, and elsewhere.
const FUNCTION_RELOCATIONS: [u64; 2] = if cfg!(target_arch = "x86_64") { [7, 6] } else { [1026, 1025] };

/// The bit of a symbol's version that marks it as one for old programs only.
const HIDDEN: u16 = 0x8000;

/// An entry of an object's dynamic section.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

/// A relocation with its addend.
#[repr(C)]
struct Relocation {
    offset: u64,
    info: u64,
    _addend: i64,
}

/// Calls `act` with every object that is loaded.
pub(crate) fn each_object(act: &mut dyn FnMut(&Object)) {
    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, act: *mut c_void) -> c_int {
        // SAFETY: `each_object` handed this pointer over for the time of the iteration.
        let act = unsafe { &mut *act.cast::<&mut dyn FnMut(&Object)>() };
        // SAFETY: the loader describes an object that is loaded, for the time of this call.
        let info = unsafe { &*info };
        if let Some(object) = Object::of(info) {
            act(&object);
        }
        0
    }
    let mut act = act;
    // SAFETY: the callback is called before this returns, with the pointer given here, which nobody else has.
    unsafe { libc::dl_iterate_phdr(Some(visit), ptr::from_mut(&mut act).cast()) };
}

/// The search for one symbol, handed through the loader's list of objects.
struct Search<'a> {
    name: &'a CStr,
    /// An address inside the object that searches.
    own: usize,
    /// True once the list has come past that object.
    is_past_own: bool,
    before: *mut c_void,
    after: *mut c_void,
}

/// Returns the address of `name` in the first object after the one that contains `own`, or else in the first other object.
/// So several libraries that stand before the same function form a chain.
pub(crate) fn next_definition(name: &CStr, own: usize) -> *mut c_void {
    let mut search = Search { name, own, is_past_own: false, before: ptr::null_mut(), after: ptr::null_mut() };
    // SAFETY: the callback is called before this returns, with the pointer given here, which nobody else has.
    unsafe { libc::dl_iterate_phdr(Some(visit), ptr::from_mut(&mut search).cast()) };
    if search.after.is_null() { search.before } else { search.after }
}

/// Looks into one object. Returns 0 to go on.
unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: `next_definition` handed this pointer over for the time of the iteration.
    let search = unsafe { &mut *search.cast::<Search<'_>>() };
    // SAFETY: the loader describes an object that is loaded, for the time of this call.
    let info = unsafe { &*info };
    if object_contains(info, search.own) {
        search.is_past_own = true;
        return 0;
    }
    let found = Object::of(info).map_or(ptr::null_mut(), |object| object.find(search.name));
    let slot = if search.is_past_own { &mut search.after } else { &mut search.before };
    if slot.is_null() {
        *slot = found;
    }
    c_int::from(!search.after.is_null())
}

fn headers(info: &libc::dl_phdr_info) -> &[libc::Elf64_Phdr] {
    if info.dlpi_phdr.is_null() {
        return &[];
    }
    // SAFETY: the loader's description says how many headers there are, and they are loaded with their object.
    unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) }
}

fn object_contains(info: &libc::dl_phdr_info, address: usize) -> bool {
    headers(info).iter().filter(|header| header.p_type == libc::PT_LOAD).any(|header| {
        let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
        (start..start.wrapping_add(header.p_memsz as usize)).contains(&address)
    })
}

/// The tables of a loaded object that its symbols are found by.
pub(crate) struct Object {
    base: usize,
    /// The relocations: of calls, and others, each with the size of its table.
    relocations: [(*const Relocation, usize); 2],
    /// The part that is read-only once the object is loaded.
    read_only: std::ops::Range<usize>,
    strings: *const c_char,
    symbols: *const libc::Elf64_Sym,
    hashes: *const u32,
    versions: *const u16,
}

impl Object {
    fn of(info: &libc::dl_phdr_info) -> Option<Self> {
        let base = info.dlpi_addr as usize;
        let header = headers(info).iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
        let mut entry = ptr::with_exposed_provenance::<Dynamic>(base.wrapping_add(header.p_vaddr as usize));
        let (mut strings, mut symbols, mut hashes, mut versions) = (0, 0, 0, 0);
        let (mut calls, mut others) = ((0, 0), (0, 0));
        loop {
            // SAFETY: the section of a loaded object is mapped, and its last entry has the tag `DT_NULL`.
            let Dynamic { tag, value } = unsafe { entry.read() };
            // Most loaders replace offsets by addresses when they load an object, and some leave the section alone.
            let address = if value < base { base.wrapping_add(value) } else { value };
            match tag {
                DT_NULL => break,
                DT_STRTAB => strings = address,
                DT_SYMTAB => symbols = address,
                DT_GNU_HASH => hashes = address,
                DT_VERSYM => versions = address,
                DT_JMPREL => calls.0 = address,
                DT_PLTRELSZ => calls.1 = value,
                DT_RELA => others.0 = address,
                DT_RELASZ => others.1 = value,
                _ => {}
            }
            entry = entry.wrapping_add(1);
        }
        let found = strings != 0 && symbols != 0 && hashes != 0;
        let table = |(at, bytes): (usize, usize)| (ptr::with_exposed_provenance(at), bytes / size_of::<Relocation>());
        let relro = headers(info).iter().find(|header| header.p_type == libc::PT_GNU_RELRO);
        let read_only = relro.map_or(0..0, |header| {
            let start = base.wrapping_add(header.p_vaddr as usize);
            start..start.wrapping_add(header.p_memsz as usize)
        });
        found.then(|| Self {
            base,
            relocations: [table(calls), table(others)],
            read_only,
            strings: ptr::with_exposed_provenance(strings),
            symbols: ptr::with_exposed_provenance(symbols),
            hashes: ptr::with_exposed_provenance(hashes),
            versions: ptr::with_exposed_provenance(versions),
        })
    }

    /// Returns the address that the object was loaded at.
    pub(crate) const fn base(&self) -> usize {
        self.base
    }

    /// Calls `act` with every place of the object that holds the address of a function.
    pub(crate) fn each_slot(&self, act: &mut dyn FnMut(&Slot<'_>)) {
        for (table, count) in self.relocations.iter().filter(|(table, _)| !table.is_null()) {
            for at in 0..*count {
                // SAFETY: the object's own section says how long its table is.
                let Relocation { offset, info, .. } = unsafe { table.wrapping_add(at).read() };
                if FUNCTION_RELOCATIONS.contains(&(info & 0xffff_ffff)) {
                    // SAFETY: relocations name symbols that exist.
                    let symbol = unsafe { &*self.symbols.wrapping_add((info >> 32) as usize) };
                    // SAFETY: names of symbols are strings of the object's table.
                    let name = unsafe { CStr::from_ptr(self.strings.wrapping_add(symbol.st_name as usize)) };
                    let place: *mut *mut c_void =
                        ptr::with_exposed_provenance_mut(self.base.wrapping_add(offset as usize));
                    let read_only = self.read_only.contains(&place.addr()).then(|| self.read_only.clone());
                    act(&Slot { symbol: name, is_defined_within: symbol.st_shndx != 0, place, read_only });
                }
            }
        }
    }

    /// Returns the address of a symbol that the object defines; of several versions, the one that new programs get.
    fn find(&self, name: &CStr) -> *mut c_void {
        let hash = gnu_hash(name);
        let (buckets, first, words) = (self.hash_word(0), self.hash_word(1), self.hash_word(2));
        if buckets == 0 {
            return ptr::null_mut();
        }
        // Four words, then the filter in words of 64 bits, the buckets, and a chain of hashes that starts with symbol `first`.
        let buckets_at = 4 + words as usize * 2;
        let chains_at = buckets_at + buckets as usize;
        let mut index = self.hash_word(buckets_at + (hash % buckets) as usize);
        let mut found = ptr::null_mut();
        while index >= first {
            let chain = self.hash_word(chains_at + (index - first) as usize);
            if chain | 1 == hash | 1
                && let Some(address) = self.defined(index as usize, name)
            {
                if !self.is_for_old_programs(index as usize) {
                    return address;
                }
                found = address;
            }
            if chain & 1 == 1 {
                break;
            }
            index += 1;
        }
        found
    }

    fn hash_word(&self, at: usize) -> u32 {
        // SAFETY: the table has the four words of its head, and says with them where the others are.
        unsafe { self.hashes.wrapping_add(at).read() }
    }

    fn defined(&self, index: usize, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the hash table names symbols that exist.
        let symbol = unsafe { &*self.symbols.wrapping_add(index) };
        // SAFETY: names of symbols are strings of the object's table.
        let its_name = unsafe { CStr::from_ptr(self.strings.wrapping_add(symbol.st_name as usize)) };
        let is_it = symbol.st_shndx != 0 && its_name == name;
        is_it.then(|| ptr::with_exposed_provenance_mut(self.base.wrapping_add(symbol.st_value as usize)))
    }

    fn is_for_old_programs(&self, index: usize) -> bool {
        if self.versions.is_null() {
            return false;
        }
        // SAFETY: where there are versions, every symbol has one.
        let version = unsafe { self.versions.wrapping_add(index).read() };
        version & HIDDEN != 0
    }
}

/// A place that holds the address of a function.
pub(crate) struct Slot<'a> {
    pub(crate) symbol: &'a CStr,
    /// True if the object has such a function itself.
    pub(crate) is_defined_within: bool,
    place: *mut *mut c_void,
    read_only: Option<std::ops::Range<usize>>,
}

impl Slot<'_> {
    /// Has the place hold another address.
    pub(crate) fn set(&self, address: *mut c_void) {
        if !self.protect(libc::PROT_READ | libc::PROT_WRITE) {
            return;
        }
        // SAFETY: the loader wrote an address there, and the page may be written.
        let place = unsafe { &*self.place.cast::<AtomicPtr<c_void>>() };
        place.store(address, Ordering::Release);
        self.protect(libc::PROT_READ);
    }

    /// Changes what may be done with the pages around the place, if they are read-only by themselves.
    fn protect(&self, protection: c_int) -> bool {
        const PAGE: usize = 4096;
        let Some(read_only) = &self.read_only else { return true };
        let start = read_only.start / PAGE * PAGE;
        let length = (read_only.end / PAGE * PAGE).saturating_sub(start);
        // SAFETY: these pages belong to the object, and nothing but their protection changes.
        unsafe { libc::mprotect(ptr::with_exposed_provenance_mut(start), length, protection) == 0 }
    }
}

fn gnu_hash(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e4_the_loaders_functions_are_found_without_them() {
        for name in [c"dlsym", c"dlvsym", c"getpid"] {
            // SAFETY: a look-up of a name.
            let expected = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            assert_eq!(
                next_definition(name, e4_the_loaders_functions_are_found_without_them as *const () as usize),
                expected
            );
        }
        assert!(next_definition(c"bursar_no_such_symbol", 0).is_null());
    }
}

//! Finding a symbol in the objects that are loaded, without the loader's own functions: `dlsym` is what is looked for.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

const DT_NULL: i64 = 0;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_VERSYM: i64 = 0x6fff_fff0;
/// The bit of a symbol's version that marks it as one for old programs only.
const HIDDEN: u16 = 0x8000;

/// An entry of an object's dynamic section.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
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
struct Object {
    base: usize,
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
                _ => {}
            }
            entry = entry.wrapping_add(1);
        }
        let found = strings != 0 && symbols != 0 && hashes != 0;
        found.then(|| Self {
            base,
            strings: ptr::with_exposed_provenance(strings),
            symbols: ptr::with_exposed_provenance(symbols),
            hashes: ptr::with_exposed_provenance(hashes),
            versions: ptr::with_exposed_provenance(versions),
        })
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

//! Cuts off what a program has besides the parts that are loaded: debug information, nine tenths of a test program.

/// The offsets in the header of a 64-bit file: the table of segments, that of sections, and the entries of each.
const SEGMENTS: usize = 32;
const SECTIONS: usize = 40;
const SEGMENT_SIZE: usize = 54;
const SEGMENT_COUNT: usize = 56;
const SECTION_COUNT: usize = 60;
const SECTION_NAMES: usize = 62;

/// Returns the program without anything behind its last segment, which the kernel and the loader never read. What is no
/// 64-bit program for a little-endian machine is returned as it is.
pub(super) fn loaded_part(mut program: Vec<u8>) -> Vec<u8> {
    let Some(end) = end_of_segments(&program) else { return program };
    program.truncate(end);
    program[SECTIONS..SECTIONS + 8].fill(0);
    program[SECTION_COUNT..SECTION_COUNT + 2].fill(0);
    program[SECTION_NAMES..SECTION_NAMES + 2].fill(0);
    program
}

fn end_of_segments(program: &[u8]) -> Option<usize> {
    if program.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let table = number(program, SEGMENTS, 8)?;
    let (size, count) = (number(program, SEGMENT_SIZE, 2)?, number(program, SEGMENT_COUNT, 2)?);
    let mut end = table.checked_add(size * count)?;
    for segment in 0..count {
        let at = table + segment * size;
        let (offset, length) = (number(program, at + 8, 8)?, number(program, at + 32, 8)?);
        end = end.max(offset.checked_add(length)?);
    }
    (end <= program.len()).then_some(end)
}

/// Reads a little-endian number of so many bytes.
fn number(program: &[u8], at: usize, bytes: usize) -> Option<usize> {
    let field = program.get(at..at.checked_add(bytes)?)?;
    field.iter().rev().try_fold(0usize, |sum, byte| sum.checked_mul(256)?.checked_add(usize::from(*byte)))
}

#[cfg(test)]
#[cfg(all(target_os = "linux", target_pointer_width = "64", target_endian = "little"))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::Command;

    #[test]
    fn a_program_runs_without_what_is_cut_off() {
        let whole = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let part = loaded_part(whole.clone());
        assert!(part.len() < whole.len(), "{} of {}", part.len(), whole.len());
        let path = std::env::temp_dir().join(format!("xtask-elf-{}", std::process::id()));
        std::fs::write(&path, part).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        let listed = Command::new(&path).arg("--list").output();
        std::fs::remove_file(&path).unwrap();
        assert!(String::from_utf8_lossy(&listed.unwrap().stdout).contains("a_program_runs_without"));
    }

    #[test]
    fn what_is_no_program_stays_as_it_is() {
        for text in [&b""[..], b"\x7fELF", b"\x7fELF\x02\x01 and no more", b"#!/bin/sh\n"] {
            assert_eq!(loaded_part(text.to_vec()), text);
        }
    }
}

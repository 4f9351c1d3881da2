//! What safe code cannot do to the linear tokens and the streams: each case must not compile, for the reason recorded
//! beside it. `TRYBUILD=overwrite cargo test -p bursar-core --test compile_fail` records the reasons anew.

use trybuild::TestCases;

#[test]
fn r3_blocks_are_not_freed_twice_copied_or_forged() {
    TestCases::new().compile_fail("tests/compile_fail/r3_*.rs");
}

#[test]
fn r8_frames_are_not_released_twice_copied_or_forged() {
    TestCases::new().compile_fail("tests/compile_fail/r8_*.rs");
}

#[test]
fn s3_streams_are_not_invented() {
    TestCases::new().compile_fail("tests/compile_fail/s3_*.rs");
}

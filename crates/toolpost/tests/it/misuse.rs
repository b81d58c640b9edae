//! Each misuse of an attribute is a compile error that says what to write instead. What compiles is in `good_use`: as a
//! part of this program, because for programs that run every dependency would be built once more.

#[test]
fn trybuild_refuses_each_misuse() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
}

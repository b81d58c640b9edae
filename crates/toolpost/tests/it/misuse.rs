//! Each misuse of an attribute is a compile error that says what to write instead; each use beside it compiles.

#[test]
fn trybuild_pairs() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/good/*.rs");
    cases.compile_fail("tests/ui/bad/*.rs");
}

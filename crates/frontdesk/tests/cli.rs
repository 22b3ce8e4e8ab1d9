//! What the command says: help, version, and errors that name file, key, value and what is allowed.

#[test]
fn cli() {
    trycmd::TestCases::new().case("tests/cli/*.trycmd").run();
}

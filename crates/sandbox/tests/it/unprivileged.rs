//! When the tests run as root, everything again as an ordinary user.

#[test]
fn everything_again_as_an_ordinary_user() {
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::process::CommandExt as _;
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        println!("SKIP everything_again_as_an_ordinary_user: this is an ordinary user already");
        return;
    }
    let program = std::env::current_exe().unwrap();
    #[expect(clippy::disallowed_methods, reason = "the test program itself, as another user")]
    let mut command = std::process::Command::new(&program);
    command
        .args(["--skip", "unprivileged", "--test-threads", "2", "--nocapture"])
        // The attack table alone is asked for whole.
        .args(if crate::attack::is_complete() { &["attack", "leaks"][..] } else { &[] })
        .current_dir("/")
        .env("TMPDIR", "/tmp");
    let output = match command.uid(65_534).gid(65_534).output() {
        Ok(output) => output,
        Err(error) => {
            println!("SKIP everything_again_as_an_ordinary_user: {}: {error}", program.display());
            return;
        }
    };
    println!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "as user 65534: {}", output.status);
}

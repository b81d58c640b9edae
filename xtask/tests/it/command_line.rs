use xtask::command::{Captured, Task};

fn run(arguments: &[&str]) -> Captured {
    Task::new(env!("CARGO_BIN_EXE_xtask"), arguments).capture().unwrap()
}

#[test]
fn an_unknown_chore_gets_the_nearest_one_and_status_2() {
    let rows = [
        (
            &["tset"][..],
            "error: there is no chore `tset`; did you mean `test`? `cargo xtask help` lists them\n",
        ),
        (&["release"], "error: there is no chore `release`; `cargo xtask help` lists them\n"),
        (&["tidy", "--fix"], "error: `tidy` takes no arguments, found `--fix`; leave it out\n"),
    ];
    for (arguments, expected) in rows {
        let captured = run(arguments);
        assert_eq!((captured.status, captured.errors.as_str()), (Some(2), expected), "{arguments:?}");
    }
}

#[test]
fn help_names_every_chore() {
    for arguments in [&["help"][..], &["--help"], &[]] {
        let captured = run(arguments);
        assert!(captured.success);
        for chore in ["test", "tidy", "examples", "attack", "bench", "publish-check", "semver", "help"] {
            assert!(captured.text.contains(&format!("\n  {chore} ")), "{chore} in {}", captured.text);
        }
    }
}

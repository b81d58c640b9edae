//! The languages of this host.

use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use toolpost_runtimes::Languages;
use toolpost_sandbox::{Language, Sandbox};

#[test]
fn detection_names_paths_versions_and_what_to_install() {
    let all = Languages::detect(&Sandbox::new());
    assert_eq!(all.iter().map(|status| status.language).collect::<Vec<_>>(), Language::ALL);
    for status in all.iter() {
        if status.available {
            println!(
                "{}: {} {}",
                status.language,
                status.version.as_deref().unwrap(),
                status.path.as_ref().unwrap().display()
            );
            assert!(status.path.as_ref().unwrap().is_absolute() && status.hint.is_none(), "{status:?}");
            assert!(status.version.as_ref().unwrap().len() < 100, "{status:?}");
        } else {
            println!("{}: {}", status.language, status.reason.as_deref().unwrap());
            assert!(status.reason.is_some() && status.hint.unwrap().contains("install"), "{status:?}");
        }
    }
    let python = all.get(Language::Python).unwrap();
    assert!(python.version.as_ref().unwrap().starts_with("3."), "{python:?}");
    let nowhere = Languages::detect(&Sandbox::new().search_path("/nowhere"));
    assert!(nowhere.iter().all(|status| !status.available), "{nowhere:?}");
    assert_eq!(nowhere.get(Language::Go).unwrap().hint, Some(Language::Go.install_hint()));
}

#[test]
fn version_answers_are_bounded() {
    let directory = tempfile::tempdir().unwrap();
    // A program of a sandbox may be another user.
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let bin = directory.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    // `yes` answers with many or endless lines, `true` with none.
    for (source, name) in [("/usr/bin/yes", "ruby"), ("/usr/bin/yes", "lua"), ("/usr/bin/true", "perl")] {
        std::fs::copy(source, bin.join(name)).unwrap();
        std::fs::set_permissions(bin.join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let start = Instant::now();
    let all = Languages::detect(&Sandbox::new().search_path(bin.into_os_string()));
    assert!(start.elapsed() < Duration::from_secs(30));
    for status in all.iter() {
        let text = status.version.as_ref().or(status.reason.as_ref()).unwrap();
        assert!(text.len() < 400 && !text.contains('\n'), "{status:?}");
    }
    let silent = all.get(Language::Perl).unwrap();
    assert!(!silent.available && silent.reason.as_ref().unwrap().contains("prints no version"), "{silent:?}");
}

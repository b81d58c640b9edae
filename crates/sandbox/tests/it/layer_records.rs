//! Records of layers that code wrote are never applied, and the size of a layer is measured at the end of a run.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use toolpost_sandbox::{ApplyMode, HeldRun, Limits, Reached, Sandbox, Verdict, Workspace};

use crate::support::{bash, skip_without_namespaces};

/// A held run with its layers.
struct Held {
    directory: tempfile::TempDir,
    layers: tempfile::TempDir,
    id: String,
}

impl Held {
    fn new() -> Self {
        let (directory, layers) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let sandbox = over(directory.path(), layers.path()).apply(ApplyMode::Hold);
        let id = bash(&sandbox, "echo held > file").applied.unwrap().id;
        Self { directory, layers, id }
    }

    fn layer(&self) -> PathBuf {
        let mut entries = fs::read_dir(self.layers.path()).unwrap().map(|entry| entry.unwrap().path());
        entries.find(|path| path.display().to_string().ends_with(&self.id)).unwrap()
    }

    fn record(&self) -> PathBuf {
        self.layer().join("layer.json")
    }

    fn is_found(&self) -> bool {
        HeldRun::find(&self.id, Some(self.layers.path())).is_ok()
    }

    /// The reasons for its unproven layers.
    fn unproven(&self) -> Vec<String> {
        let place = self.layers.path().display().to_string();
        let all = HeldRun::unproven(Some(self.layers.path())).into_iter();
        all.filter(|reason| reason.contains(&place)).collect()
    }

    /// Runs another program there, which applies what an earlier apply left.
    fn run(&self) -> bool {
        bash(&over(self.directory.path(), self.layers.path()), "true");
        self.directory.path().join("file").exists()
    }
}

/// Writes a changed record with a valid proof, as the owner of the key can.
pub(crate) fn write_record(layers: &Path, layer: &Path, text: &str) {
    use sha2::{Digest as _, Sha256};
    let (begin, proof) = text.rsplit_once(r#""proof":""#).unwrap();
    let rest = proof.split_once('"').unwrap().1;
    let plain = format!(r#"{begin}"proof":""{rest}"#);
    let mut key = fs::read(layers.join("key")).unwrap();
    key.resize(64, 0);
    let pad = |filler: u8| key.iter().map(|byte| byte ^ filler).collect::<Vec<_>>();
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update(&plain).finalize();
    let proof = Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize();
    let proof = proof.iter().fold(String::new(), |proof, byte| proof + &format!("{byte:02x}"));
    fs::write(layer.join("layer.json"), format!(r#"{begin}"proof":"{proof}"{rest}"#)).unwrap();
}

fn over(directory: &Path, layers: &Path) -> Sandbox {
    Sandbox::new().workspace(Workspace::Host(directory.to_owned())).layers(layers)
}

/// The kinds of changes to a record. Each text is replaced, as often as it occurs.
const CHANGES: [(&str, &str); 7] = [
    (r#""state":"held""#, r#""state":"applying""#),
    (r#""v":2"#, r#""v":1"#),
    (r#""allowed":[]"#, r#""allowed":[[46]]"#),
    (r#""since":["#, r#""since":[4"#),
    (r#""proof":""#, r#""proof":"0"#),
    (r#""started":1"#, r#""started":2"#),
    (r#""held_because":null"#, r#""held_because":"x""#),
];

#[test]
fn a_changed_record_is_not_applied() {
    if skip_without_namespaces("a_changed_record_is_not_applied") {
        return;
    }
    for (before, after) in CHANGES {
        let held = Held::new();
        assert!(held.is_found() && held.unproven().is_empty());
        let text = fs::read_to_string(held.record()).unwrap();
        assert!(text.contains(before), "{before}: {text}");
        fs::write(held.record(), text.replace(before, after)).unwrap();
        assert!(!held.is_found(), "{after}");
        assert!(!held.run(), "{after}");
        let reasons = held.unproven();
        assert_eq!(reasons.len(), 1, "{after}: {reasons:?}");
        assert!(reasons[0].contains("upper"), "{reasons:?}");
        let error = HeldRun::find(&held.id, Some(held.layers.path())).unwrap_err().to_string();
        assert!(error.contains("proof"), "{error}");
        fs::write(held.record(), &text).unwrap();
        assert!(held.is_found(), "the record as it was is valid");
    }
}

/// A genuine record proves its own directory and key alone.
#[test]
fn a_copied_record_is_not_applied() {
    if skip_without_namespaces("a_copied_record_is_not_applied") {
        return;
    }
    let held = Held::new();
    let other = tempfile::tempdir().unwrap();
    let stat = other.path().metadata().unwrap();
    let copy = held.layers.path().join(format!("{:x}-{:x}-{}", stat.dev(), stat.ino(), "0badcafe"));
    fs::create_dir_all(copy.join("upper")).unwrap();
    fs::write(copy.join("upper/file"), "planted").unwrap();
    fs::copy(held.record(), copy.join("layer.json")).unwrap();
    bash(&over(other.path(), held.layers.path()), "true");
    assert!(HeldRun::find("0badcafe", Some(held.layers.path())).is_err());
    assert_eq!(fs::read_dir(other.path()).unwrap().count(), 0);
    // The record of another key.
    let second = Held::new();
    fs::copy(second.layers.path().join("key"), held.layers.path().join("key")).unwrap();
    assert!(!held.is_found());
    assert!(second.is_found());
}

/// Code that works above the directory for layers sees neither records nor the key, and changes none.
#[test]
fn layers_and_their_key_are_hidden() {
    if skip_without_namespaces("layers_and_their_key_are_hidden") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let layers = directory.path().join("state/layers");
    fs::create_dir_all(&layers).unwrap();
    fs::set_permissions(&layers, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let sandbox = || over(directory.path(), &layers);
    let script = "ls -A state/layers; cat state/layers/key; echo x > state/layers/planted; rm -rf state; echo 1 > done";
    // A layer of another directory: none lies in the directory that it covers.
    let other = tempfile::tempdir().unwrap();
    let id = bash(&over(other.path(), &layers).apply(ApplyMode::Hold), "echo 1 > held").applied.unwrap().id;
    assert!(layers.join("key").exists());
    let outcome = bash(&sandbox(), script);
    assert_eq!(outcome.stdout.text(), "", "{}", outcome.stderr.text());
    assert!(directory.path().join("done").exists());
    assert!(!layers.join("planted").exists());
    assert!(HeldRun::find(&id, Some(&layers)).is_ok(), "the held run is whole");
    // A program that writes to the directory itself sees them as little.
    let live = Sandbox::new().workspace(Workspace::LiveHost(directory.path().to_owned())).layers(&layers);
    let outcome = bash(&live, script);
    assert_eq!(outcome.stdout.text(), "", "{}", outcome.stderr.text());
    assert!(HeldRun::find(&id, Some(&layers)).is_ok(), "the held run is whole");
    // And one that only reads it.
    let shown = bash(
        &Sandbox::new().read_only(directory.path()).layers(&layers),
        &format!("ls -A {}", layers.display()),
    );
    assert_eq!(shown.stdout.text(), "", "{}", shown.stderr.text());
}

/// A program that ends before the first measurement exceeds no limit unnoticed.
#[test]
fn a_layer_is_measured_at_the_end() {
    if skip_without_namespaces("a_layer_is_measured_at_the_end") {
        return;
    }
    let limits = Limits::default().with_layer_inodes(16).with_layer_bytes(1 << 20);
    for (script, verdict, reached) in [
        (": > one", Verdict::Ok, None),
        (": > f1; for i in {2..40}; do : > f$i; done", Verdict::Inodes { limit: 16 }, Some(Reached::Inodes)),
        ("printf '%2000000s' > large", Verdict::Disk { limit: 1 << 20 }, Some(Reached::Disk)),
    ] {
        let (directory, layers) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let outcome = bash(&over(directory.path(), layers.path()).limits(limits.clone()), script);
        assert_eq!(outcome.verdict, verdict, "{script}: {}", outcome.stderr.text());
        if let Some(reached) = reached {
            assert!(outcome.report.reached.contains(&reached), "{script}: {:?}", outcome.report.reached);
        }
    }
}

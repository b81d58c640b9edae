//! A genuine record of a held run is changed by the input. A reference that knows no key says whether the record is
//! still the genuine one: by the values of its fields, parsed as plain JSON.

#![no_main]

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value};
use toolpost_sandbox::{ApplyMode, HeldRun, Sandbox, StagedDirectory};

/// Texts that the input inserts.
const TEXTS: [&str; 24] = [
    " ",
    "\n",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\u0070",
    "0",
    "1",
    "2",
    "-",
    "e1",
    "null",
    "true",
    "\"applying\"",
    "\"held\"",
    "\"state\":\"applying\",",
    "\"v\":1,",
    "\"allowed\":[[46]],",
    "\"more\":{},",
    "\"proof\":\"\",",
];

struct World {
    _place: tempfile::TempDir,
    layers: PathBuf,
    record: PathBuf,
    id: String,
    genuine: String,
}

impl World {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let (directory, layers) = (place.path().join("d"), place.path().join("layers"));
        std::fs::create_dir(&directory).unwrap();
        let sandbox = Sandbox::new().layers(&layers).apply(ApplyMode::Hold);
        let copy = StagedDirectory::copy(&directory, &sandbox).unwrap();
        std::fs::write(copy.path().join("file"), "held").unwrap();
        let id = copy.end().unwrap().id;
        let layer = std::fs::read_dir(&layers).unwrap().map(|entry| entry.unwrap().path());
        let record = layer.filter(|path| path.is_dir()).last().unwrap().join("layer.json");
        let genuine = std::fs::read_to_string(&record).unwrap();
        Self { _place: place, layers, record, id, genuine }
    }

    fn is_found(&self) -> bool {
        HeldRun::all(Some(&self.layers)).iter().any(|run| run.id() == self.id)
    }

    fn put(&self, text: &[u8]) {
        std::fs::write(&self.record, text).unwrap();
    }
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(World::new());
}

/// The genuine text, changed: three bytes of the input are a place and a text or a byte.
fn changed(genuine: &str, input: &[u8]) -> Vec<u8> {
    let mut text = genuine.as_bytes().to_vec();
    for step in input.chunks_exact(4).take(16) {
        let place = usize::from(u16::from_le_bytes([step[0], step[1]])) % (text.len() + 1);
        let insert = TEXTS[usize::from(step[3]) % TEXTS.len()].bytes();
        match step[2] % 5 {
            0 => drop(text.splice(place..place, insert)),
            1 if place < text.len() => text[place] = step[3],
            2 if place < text.len() => drop(text.remove(place)),
            3 => text.truncate(place.max(1)),
            // A whole member, after the opening brace.
            _ => {
                let start = text.len().min(1);
                drop(text.splice(start..start, insert));
            }
        }
    }
    text
}

/// Whether a text has the fields of the genuine record; a missing one is null.
fn is_same(genuine: &Map<String, Value>, text: &[u8]) -> bool {
    let Ok(Value::Object(found)) = serde_json::from_slice(text) else { return false };
    genuine.iter().all(|(name, value)| found.get(name).unwrap_or(&Value::Null) == value)
}

fn check(world: &World, input: &[u8]) {
    let Value::Object(genuine) = serde_json::from_str(&world.genuine).unwrap() else { panic!("no object") };
    let text = changed(&world.genuine, input);
    world.put(&text);
    let is_genuine = is_same(&genuine, &text);
    if world.is_found() {
        assert!(is_genuine, "accepted: {}", String::from_utf8_lossy(&text));
    } else {
        assert_ne!(text, world.genuine.as_bytes(), "the genuine record is rejected");
    }
    // Under another name, no record is valid.
    let layer = world.record.parent().unwrap();
    let other = layer.with_file_name("0-0-00000000");
    std::fs::create_dir_all(other.join("upper")).unwrap();
    std::fs::write(other.join("upper/file"), "planted").unwrap();
    std::fs::copy(&world.record, other.join("layer.json")).unwrap();
    let is_planted = |path: &Path| path.exists() && HeldRun::all(Some(&world.layers)).len() > 1;
    assert!(!is_planted(&other), "planted: {}", String::from_utf8_lossy(&text));
    std::fs::remove_dir_all(&other).unwrap();
    world.put(world.genuine.as_bytes());
    assert!(world.is_found(), "the genuine record is valid again");
}

fuzz_target!(|input: &[u8]| WORLD.with_borrow(|world| check(world, input)));

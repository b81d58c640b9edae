//! Random input for parsers of hostile bytes: names, host patterns, values, result lines, and the protocols
//! on a program's descriptors.
//!
//! `cargo-fuzz` needs a nightly compiler, which the project does not use. A seeded generator, whose seed is
//! printed, gives reproducible inputs: for half a second here, and for a minute in `cargo xtask attack`.

use std::time::{Duration, Instant};

use toolpost_sandbox::{
    Cancel, CellLimits, Host, HostPattern, Language, Level, Pool, Program, Sandbox, Session, Source,
};

use super::is_complete;
use crate::support::{quick, run};

/// A small generator (xorshift) with the same output everywhere.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, most: usize) -> usize {
        (self.next() % most as u64) as usize
    }

    pub(super) fn pick<'a>(&mut self, pieces: &[&'a str]) -> &'a str {
        pieces[self.below(pieces.len())]
    }

    /// Text of hostile pieces.
    fn text(&mut self, pieces: &[&str]) -> String {
        (0..self.below(9)).map(|_| self.pick(pieces).to_owned()).collect()
    }
}

/// Calls a function with fresh input until the time is over. Prints the seed for reproduction.
pub(super) fn for_a_while(name: &str, mut each: impl FnMut(&mut Random)) {
    let (seed, time) = if is_complete() {
        (std::process::id().into(), Duration::from_mins(1))
    } else {
        (4_711, Duration::from_millis(500))
    };
    let mut random = Random(seed | 1);
    let (start, mut count) = (Instant::now(), 0u64);
    while start.elapsed() < time {
        each(&mut random);
        count += 1;
    }
    println!("{name}: {count} inputs, seed {seed}");
}

const NAMES: &[&str] = &[
    "a",
    "B",
    "/",
    "//",
    "..",
    ".",
    "\\",
    "\0",
    "\n",
    "\u{1b}[2J",
    "\u{202e}",
    "\u{200b}",
    "-",
    " ",
    "CON",
    "nul",
    ".txt",
    "é",
    "e\u{301}",
    "%2e%2e",
    "~",
    "$HOME",
    "`id`",
    ":",
    "*",
    "COM1",
    "\u{fffd}",
    "\u{7f}",
    "\u{2028}",
    "𝕏",
    "xxxxxxxxxxxxxxxxxxxxxxxxx",
];

#[test]
fn accepted_names_are_harmless() {
    for_a_while("file names", |random| {
        let mut name = random.text(NAMES);
        if random.below(20) == 0 {
            name = name.repeat(60);
        }
        let accepted = Sandbox::new().file(name.clone(), Source::Bytes(vec![])).check_settings().is_ok();
        let harmless = !name.is_empty()
            && name.len() <= 1024
            && !name.contains(['\\', '\0', '\n', '\u{1b}', '\u{202e}', '\u{200b}', '\u{7f}'])
            && name.split('/').all(|part| {
                !part.is_empty() && part != "." && part != ".." && part.len() <= 255 && !part.starts_with('-')
            });
        assert!(!accepted || harmless, "accepted {name:?}");
    });
}

const HOSTS: &[&str] = &[
    "a",
    "example",
    ".",
    "..",
    "com",
    "*",
    "*.",
    ":",
    "443",
    "99999",
    "@",
    "/",
    "\0",
    "\n",
    " ",
    "127.0.0.1",
    "[::1]",
    "0x7f",
    "2130706433",
    "xn--",
    "é",
    "-",
    "_",
    "%00",
    "[",
    "]",
    "localhost",
    "EXAMPLE",
    "#",
    "?",
    "::ffff:127.0.0.1",
    "internal",
];

#[test]
fn host_patterns_are_parsed_or_rejected() {
    for_a_while("host patterns", |random| {
        let text = random.text(HOSTS);
        let Ok(pattern) = HostPattern::new(&text) else { return };
        let shown = pattern.to_string();
        assert!(
            shown.is_ascii() && !shown.contains(['\0', '\n', ' ', '@', '/', '#', '?', '%']),
            "{text:?} {shown:?}"
        );
        let again = HostPattern::new(&shown).unwrap_or_else(|error| panic!("{text:?} {shown:?}: {error}"));
        assert_eq!(again.to_string(), shown, "{text:?}");
    });
}

/// Python that writes random bytes to all of its descriptors and its output, and may then continue.
fn noise(random: &mut Random) -> String {
    let seed = random.next();
    let prefix = random.pick(&[
        "b''",
        "b'::result '",
        "b'\\x00' * 8",
        "b'X' * 8",
        "(48).to_bytes(4, 'little')",
        "b'{\"'",
    ]);
    let end = random.pick(&[
        "",
        "os._exit(0)",
        "1 / 0",
        "os.closerange(0, 64)",
        "os.kill(os.getpid(), 9)",
        "sys.exit(3)",
        "'value'",
    ]);
    let close = random.pick(&["", "os.close(fd)", "os.dup2(1, fd)"]);
    format!(
        "import os, random, sys\nr = random.Random({seed})\nfor fd in list(range(3, 40)) + [1, 2]:\n    \
         try:\n        os.set_blocking(fd, False)\n        os.write(fd, {prefix} + r.randbytes(r.randrange(1, 3000)))\n        {close}\n    \
         except OSError: pass\n{end}"
    )
}

/// The result of a run after noise on everything that it can write.
fn survives(sandbox: &Sandbox, random: &mut Random) {
    let code = noise(random);
    let outcome = run(sandbox, &Program::code(Language::Python, code.clone()));
    let outcome = outcome.unwrap_or_else(|error| panic!("{error} for {code}"));
    assert!(outcome.stdout.bytes().len() < 4 << 20 && outcome.artifacts.is_empty(), "{code}");
}

fn strict() -> Option<Sandbox> {
    let available = Host::probe().availability(Level::Strict).is_some_and(|entry| entry.available);
    let limits = quick().with_wall(Duration::from_secs(6));
    available.then(|| Sandbox::new().level(Level::Strict).limits(limits))
}

#[test]
fn noise_on_every_descriptor_is_only_an_outcome() {
    let Some(sandbox) = strict() else {
        println!("SKIP noise on every descriptor: level strict is not available");
        return;
    };
    for_a_while("noise in cold runs", |random| survives(&sandbox, random));
}

#[test]
fn noise_in_a_worker_does_not_harm_the_pool() {
    let Some(sandbox) = strict() else {
        println!("SKIP noise in a spare: level strict is not available");
        return;
    };
    let pool = std::sync::Arc::new(Pool::builder(&sandbox).language(Language::Python).build().unwrap());
    let pooled = sandbox.clone().backend(pool);
    for_a_while("noise in spares", |random| {
        survives(&pooled, random);
        let next = run(&pooled, &Program::code(Language::Python, "6 * 7")).unwrap();
        assert_eq!(next.value, Some(42.into()), "{:?} {}", next.verdict, next.stderr.text());
    });
}

#[test]
fn noise_in_a_cell_ends_in_an_outcome_or_ends_the_session() {
    let Some(sandbox) = strict() else {
        println!("SKIP noise in a cell: level strict is not available");
        return;
    };
    for_a_while("noise in cells", |random| {
        let session = Session::start(&sandbox, Language::Python).unwrap();
        let limits = CellLimits::default().with_wall(Duration::from_secs(3));
        for _ in 0..2 {
            let code = noise(random);
            let result = session.run(&code, &limits, &Cancel::new(), &mut |_| {});
            if let Ok(outcome) = &result {
                assert!(outcome.artifacts.is_empty() && outcome.stdout.bytes().len() < 4 << 20, "{code}");
            }
        }
        drop(session);
    });
}

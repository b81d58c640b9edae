//! Paths in a command line for a shell: programs, scripts and other files that it names.
//!
//! The command is not executed, so values of variables and substitutions are unknown; a path after one counts from the
//! directory of the command. A changed directory (`cd tools && ./check`) counts as a second one.

/// The maximum depth of quoted command lines (`sh -c '…'`).
const MAX_DEPTH: usize = 4;
/// The maximum number of paths in a command line.
const MAX_PATHS: usize = 256;
/// Words after which another program follows.
const BEFORE_PROGRAMS: [&str; 14] = [
    "!", "if", "then", "else", "elif", "do", "while", "until", "time", "exec", "command", "env", "sudo",
    "nohup",
];

/// A path in a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommandPath {
    /// The path: absolute, relative, or beneath a home directory (`~/x`).
    pub(crate) path: Vec<u8>,
    /// The directory of an earlier `cd`.
    pub(crate) directory: Option<Vec<u8>>,
    /// Whether the path is certain: `tools/check`. Otherwise it counts if a file is there: the argument `check`.
    pub(crate) is_certain: bool,
}

/// The paths in a command line.
pub(crate) fn command_paths(line: &[u8]) -> Vec<CommandPath> {
    let mut found = Found::default();
    found.scan(line, 0);
    found.paths
}

#[derive(Default)]
struct Found {
    paths: Vec<CommandPath>,
    directories: Vec<Vec<u8>>,
}

/// A word of a command line.
#[derive(Default)]
struct Word {
    text: Vec<u8>,
    /// Whether an unknown value is at its begin.
    follows_value: bool,
    /// Whether quotes or a backslash were removed.
    is_quoted: bool,
}

/// The words before the current one in a simple command.
#[derive(Default)]
struct Before {
    has_program: bool,
    last: Vec<u8>,
}

impl Found {
    fn scan(&mut self, line: &[u8], depth: usize) {
        // The open quotes, with one level for each substitution.
        let mut quotes: Vec<Option<u8>> = vec![None];
        let mut word: Option<Word> = None;
        let mut before = Before::default();
        let mut at = 0;
        while let Some(&byte) = line.get(at) {
            at += 1;
            let next = line.get(at).copied();
            let quote = quotes.last().copied().flatten();
            match (byte, quote) {
                (b'\'', Some(b'\'')) | (b'"', Some(b'"')) => set(&mut quotes, None),
                (byte, Some(b'\'')) => word.get_or_insert_default().text.push(byte),
                (b'\\', _) => {
                    at += 1;
                    let word = word.get_or_insert_default();
                    word.is_quoted = true;
                    word.text.extend(next);
                }
                (b'$', _) if next == Some(b'(') => {
                    at += 1;
                    quotes.push(None);
                    self.end(word.take(), &mut before, depth);
                    before = Before::default();
                }
                (b'$', _) => {
                    at = after_variable(line, at);
                    let word = word.get_or_insert_default();
                    word.follows_value |= word.text.is_empty();
                }
                (b')', None) if quotes.len() > 1 => {
                    quotes.pop();
                    self.end(word.take(), &mut before, depth);
                    word = Some(Word { follows_value: true, ..Word::default() });
                }
                (b'`', _) => {
                    self.end(word.take(), &mut before, depth);
                    before = Before::default();
                    word = Some(Word { follows_value: true, ..Word::default() });
                }
                (b'\'' | b'"', None) => {
                    set(&mut quotes, Some(byte));
                    word.get_or_insert_default().is_quoted = true;
                }
                (b' ' | b'\t' | b'\r' | b'<' | b'>', None) => self.end(word.take(), &mut before, depth),
                (b';' | b'|' | b'&' | b'(' | b')' | b'{' | b'}' | b'\n', None) => {
                    self.end(word.take(), &mut before, depth);
                    before = Before::default();
                }
                (byte, _) => word.get_or_insert_default().text.push(byte),
            }
        }
        self.end(word, &mut before, depth);
    }

    fn end(&mut self, word: Option<Word>, before: &mut Before, depth: usize) {
        let Some(Word { text, follows_value, is_quoted }) = word else { return };
        if text.is_empty() {
            before.has_program |= follows_value;
            return;
        }
        let is_program = !before.has_program && !follows_value;
        // An assignment is followed by the program.
        let is_assignment = is_program && text.contains(&b'=') && !text.starts_with(b"-");
        let is_introduction = is_program && BEFORE_PROGRAMS.iter().any(|word| word.as_bytes() == text);
        before.has_program = !(is_introduction || is_assignment);
        if before.last == b"cd" || before.last == b"pushd" || before.last == b"-C" {
            self.directories.push(text.clone());
        }
        if is_quoted && depth < MAX_DEPTH && text.iter().any(|byte| b" \t\n;|&()`$<>".contains(byte)) {
            self.scan(&text, depth + 1);
        }
        // A value in a variable may be a whole command line: `LESSOPEN='|tools/open %s'`.
        let last = std::mem::replace(&mut before.last, text.clone());
        if last == b"-m" {
            let module = String::from_utf8_lossy(&text).replace('.', "/");
            self.add(format!("{module}.py").as_bytes(), false, false);
            self.add(format!("{module}/__main__.py").as_bytes(), false, false);
        }
        self.add(&text, follows_value, is_program);
        // An option with its value: `--file=tools/x`, `-ftools/x`.
        for end in text.iter().enumerate().filter(|(_, byte)| matches!(byte, b'=' | b':' | b',')) {
            self.add(text.get(end.0 + 1..).unwrap_or_default(), false, false);
        }
        if let [b'-', letter, value @ ..] = text.as_slice()
            && *letter != b'-'
        {
            self.add(value, false, false);
        }
    }

    /// Adds a path with those in earlier directories.
    fn add(&mut self, text: &[u8], follows_value: bool, is_program: bool) {
        let text = if follows_value { text.strip_prefix(b"/").unwrap_or(text) } else { text };
        let has_separator = text.contains(&b'/') || follows_value;
        // A directory is data, an option is not a file, and a program without a separator is found by `PATH`.
        if text.is_empty() || text.ends_with(b"/") || text.starts_with(b"-") || is_program && !has_separator {
            return;
        }
        let is_script = text.iter().skip(1).any(|byte| *byte == b'.') && !text.ends_with(b".");
        let is_certain = has_separator || is_script;
        let directories = std::iter::once(None).chain(self.directories.iter().cloned().map(Some));
        let paths = directories.map(|directory| CommandPath { path: text.to_vec(), directory, is_certain });
        let room = MAX_PATHS.saturating_sub(self.paths.len());
        let paths: Vec<_> = paths.take(room).collect();
        self.paths.extend(paths);
    }
}

fn set(quotes: &mut [Option<u8>], quote: Option<u8>) {
    if let Some(last) = quotes.last_mut() {
        *last = quote;
    }
}

/// The position after a variable whose `$` is before a position.
fn after_variable(line: &[u8], at: usize) -> usize {
    let rest = line.get(at..).unwrap_or_default();
    let length = match rest.first() {
        Some(b'{') => rest.iter().position(|byte| *byte == b'}').map_or(1, |end| end + 1),
        Some(byte) if byte.is_ascii_alphabetic() || *byte == b'_' => {
            let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
            rest.iter().position(|byte| !is_name(byte)).unwrap_or(rest.len())
        }
        Some(byte) if byte.is_ascii_digit() || b"@*#?$!-".contains(byte) => 1,
        _ => 0,
    };
    at + length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_scripts_are_found() {
        for (line, certain, possible) in [
            ("less -FRX", vec![], vec![]),
            ("tools/fsmonitor.sh", vec!["tools/fsmonitor.sh"], vec![]),
            ("./tools/clean.sh %f", vec!["./tools/clean.sh"], vec!["%f"]),
            ("sh tools/clean.sh | cat", vec!["tools/clean.sh"], vec![]),
            ("python clean.py --strict notes", vec!["clean.py"], vec!["notes"]),
            (
                "python -m tools.nbdiff",
                vec!["tools/nbdiff.py", "tools/nbdiff/__main__.py", "tools.nbdiff"],
                vec![],
            ),
            ("\"tools/a b\" x", vec!["tools/a b"], vec!["x"]),
            ("'tools/a b'", vec!["tools/a b", "tools/a"], vec![]),
            ("tools/a\\ b", vec!["tools/a b", "tools/a"], vec![]),
            ("sh -c 'tools/x.sh \"$1\"' -", vec!["tools/x.sh"], vec![]),
            ("f() { tools/x.sh; }; f", vec!["tools/x.sh"], vec![]),
            ("$(git rev-parse --show-toplevel)/tools/x", vec!["tools/x"], vec!["rev-parse"]),
            ("\"$(git rev-parse --show-toplevel)/tools/x\" a", vec!["tools/x"], vec!["rev-parse", "a"]),
            ("\"${ROOT}\"/tools/x", vec!["tools/x"], vec![]),
            ("$PWD/x", vec!["x"], vec![]),
            ("cd tools && ./x", vec!["./x", "./x@tools"], vec!["tools"]),
            ("env A=1 tools/x", vec!["tools/x"], vec!["1"]),
            ("A=1 tools/x", vec!["tools/x"], vec!["1"]),
            ("~/bin/x", vec!["~/bin/x"], vec![]),
            ("awk -f tools/x.awk", vec!["tools/x.awk"], vec![]),
            ("awk -ftools/x.awk --lib=tools/y", vec!["tools/x.awk", "tools/y"], vec![]),
            ("eslint src/ tests/", vec![], vec![]),
            ("x <tools/in >/dev/null", vec!["tools/in", "/dev/null"], vec![]),
            ("if tools/a; then tools/b; fi", vec!["tools/a", "tools/b"], vec![]),
        ] {
            let found = command_paths(line.as_bytes());
            let text = |path: &CommandPath| {
                let mut text = String::from_utf8(path.path.clone()).unwrap();
                if let Some(directory) = &path.directory {
                    text = format!("{text}@{}", String::from_utf8_lossy(directory));
                }
                text
            };
            let certain_found: Vec<_> = found.iter().filter(|path| path.is_certain).map(text).collect();
            for expected in &certain {
                assert!(certain_found.iter().any(|found| found == expected), "{line}: {certain_found:?}");
            }
            let possible_found: Vec<_> = found.iter().filter(|path| !path.is_certain).map(text).collect();
            for expected in &possible {
                assert!(possible_found.iter().any(|found| found == expected), "{line}: {possible_found:?}");
            }
            if certain.is_empty() {
                assert!(certain_found.is_empty(), "{line}: {certain_found:?}");
            }
        }
    }

    #[test]
    fn the_number_of_paths_is_bounded() {
        let line = "cd a; ./b; ".repeat(1000);
        assert_eq!(command_paths(line.as_bytes()).len(), MAX_PATHS);
    }
}

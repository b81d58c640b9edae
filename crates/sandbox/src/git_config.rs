//! Git's configuration format: sections, subsections, quotes, escapes, continued lines and comments.
//!
//! Format: "Syntax" of git-config(1). Git stops at an invalid line; this parser continues with the next one, so that
//! it finds at least the settings that any version of git finds.

/// The maximum number of settings in a file.
const MAX_SETTINGS: usize = 50_000;

/// A setting of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    /// The section and the name, with `*` for a subsection, in lower case: `core.hookspath`, `filter.*.clean`.
    pub(crate) key: String,
    /// The subsection, with its case.
    pub(crate) subsection: Option<Vec<u8>>,
    /// None without `=`, which means true.
    pub(crate) value: Option<Vec<u8>>,
}

/// An invalid line.
struct Invalid;

/// The settings of a file that fit, by key and subsection. None if there are too many.
pub(crate) fn parse(content: &[u8], fits: impl Fn(&str, Option<&[u8]>) -> bool) -> Option<Vec<Setting>> {
    let content = content.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(content);
    let mut reader = Reader { content, at: 0 };
    let mut settings = Vec::new();
    let (mut section, mut subsection) = (String::new(), None);
    let mut key = String::new();
    while let Some(byte) = reader.next() {
        let read = match byte {
            b' ' | b'\t' | b'\r' | b'\n' => Ok(()),
            b'#' | b';' => {
                reader.skip_line();
                Ok(())
            }
            b'[' => reader.section().map(|found| (section, subsection) = found),
            byte if byte.is_ascii_alphabetic() => {
                key.clear();
                key.push_str(&section);
                key.push_str(if subsection.is_some() { ".*." } else { "." });
                reader.setting(byte, &mut key).map(|value| {
                    if fits(&key, subsection.as_deref()) {
                        settings.push(Setting { key: key.clone(), subsection: subsection.clone(), value });
                    }
                })
            }
            _ => Err(Invalid),
        };
        if read.is_err() {
            reader.skip_line();
        }
        if settings.len() > MAX_SETTINGS {
            return None;
        }
    }
    Some(settings)
}

struct Reader<'a> {
    content: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        match self.content.get(self.at..)? {
            [b'\r', b'\n', ..] => Some(b'\n'),
            bytes => bytes.first().copied(),
        }
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        let is_pair = byte == b'\n' && self.content.get(self.at) == Some(&b'\r');
        self.at += if is_pair { 2 } else { 1 };
        Some(byte)
    }

    /// Skips the rest of the line, up to its end.
    fn skip_line(&mut self) {
        // The end of the line may be the last byte that was read.
        if self.at > 0 && self.content.get(self.at - 1) == Some(&b'\n') {
            return;
        }
        while self.peek().is_some_and(|byte| byte != b'\n') {
            self.at += 1;
        }
    }

    /// The section after `[`, and its subsection.
    fn section(&mut self) -> Result<(String, Option<Vec<u8>>), Invalid> {
        let mut name = String::new();
        loop {
            match self.next().ok_or(Invalid)? {
                b']' => {
                    // The old form `[section.subsection]`, in lower case.
                    return Ok(match name.split_once('.') {
                        Some((section, sub)) => (section.to_owned(), Some(sub.as_bytes().to_vec())),
                        None => (name, None),
                    });
                }
                b' ' | b'\t' | b'\r' => break,
                byte if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.') => {
                    name.push(char::from(byte.to_ascii_lowercase()));
                }
                _ => return Err(Invalid),
            }
        }
        loop {
            match self.next().ok_or(Invalid)? {
                b'"' => break,
                b' ' | b'\t' | b'\r' => {}
                _ => return Err(Invalid),
            }
        }
        let mut subsection = Vec::new();
        loop {
            match self.next().ok_or(Invalid)? {
                b'\n' => return Err(Invalid),
                b'"' => break,
                b'\\' => match self.next().ok_or(Invalid)? {
                    b'\n' => return Err(Invalid),
                    byte => subsection.push(byte),
                },
                byte => subsection.push(byte),
            }
        }
        match self.next() {
            // `[a.b "c"]` has the subsection `b.c`.
            Some(b']') => Ok(match name.split_once('.') {
                Some((section, above)) => {
                    let whole = [above.as_bytes(), b".", &subsection].concat();
                    (section.to_owned(), Some(whole))
                }
                None => (name, Some(subsection)),
            }),
            _ => Err(Invalid),
        }
    }

    /// The value of the setting whose name begins with a letter. Appends the name to a key.
    fn setting(&mut self, first: u8, key: &mut String) -> Result<Option<Vec<u8>>, Invalid> {
        key.push(char::from(first.to_ascii_lowercase()));
        while let Some(byte) = self.peek().filter(|byte| byte.is_ascii_alphanumeric() || *byte == b'-') {
            key.push(char::from(byte.to_ascii_lowercase()));
            self.at += 1;
        }
        while self.peek().is_some_and(|byte| matches!(byte, b' ' | b'\t')) {
            self.at += 1;
        }
        match self.next() {
            None | Some(b'\n') => Ok(None),
            Some(b'=') => Ok(Some(self.value()?)),
            Some(_) => Err(Invalid),
        }
    }

    /// The value after `=`.
    fn value(&mut self) -> Result<Vec<u8>, Invalid> {
        let mut value = Vec::with_capacity(64);
        let mut is_quoted = false;
        // The length without blanks at the end.
        let mut length = 0;
        loop {
            let byte = match self.next() {
                None | Some(b'\n') if is_quoted => return Err(Invalid),
                None | Some(b'\n') => {
                    value.truncate(length);
                    // Git reads the value as a string of C.
                    value.truncate(value.iter().position(|byte| *byte == 0).unwrap_or(length));
                    return Ok(value);
                }
                Some(byte) => byte,
            };
            match byte {
                b' ' | b'\t' | b'\r' if !is_quoted => {
                    if length > 0 {
                        value.push(byte);
                    }
                    continue;
                }
                b'#' | b';' if !is_quoted => {
                    self.skip_line();
                    continue;
                }
                b'"' => {
                    is_quoted = !is_quoted;
                    // Blanks before a quote are part of the value.
                    length = value.len();
                    continue;
                }
                b'\\' => match self.next() {
                    // The end of the file is that of a line.
                    None | Some(b'\n') => {}
                    Some(b't') => value.push(b'\t'),
                    Some(b'b') => value.push(b'\x08'),
                    Some(b'n') => value.push(b'\n'),
                    Some(byte @ (b'\\' | b'"')) => value.push(byte),
                    Some(_) => return Err(Invalid),
                },
                byte => value.push(byte),
            }
            length = value.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `section.subsection.name` and the value.
    type Named = (Vec<u8>, Option<Vec<u8>>);

    /// The settings of real git.
    fn of_git(content: &[u8]) -> Option<Vec<Named>> {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("config");
        std::fs::write(&file, content).unwrap();
        #[expect(clippy::disallowed_methods, reason = "the reference")]
        let mut git = std::process::Command::new("git");
        git.args(["config", "--list", "-z", "--no-includes", "-f"]).arg(&file).env("HOME", place.path());
        let output = git.output().ok()?;
        output.status.success().then(|| {
            let entries = output.stdout.split(|byte| *byte == 0).filter(|entry| !entry.is_empty());
            let parted = entries.map(|entry| match entry.iter().position(|byte| *byte == b'\n') {
                Some(end) => (entry[..end].to_vec(), Some(entry[end + 1..].to_vec())),
                None => (entry.to_vec(), None),
            });
            parted.collect()
        })
    }

    fn ours(content: &[u8]) -> Vec<Named> {
        let settings = parse(content, |_, _| true).unwrap();
        let name = |setting: &Setting| match &setting.subsection {
            None => setting.key.clone().into_bytes(),
            Some(subsection) => {
                let (section, name) = setting.key.split_once(".*.").unwrap();
                [section.as_bytes(), b".", subsection, b".", name.as_bytes()].concat()
            }
        };
        settings.iter().map(|setting| (name(setting), setting.value.clone())).collect()
    }

    #[test]
    fn settings_are_those_of_git() {
        for content in [
            "[core]\n\thooksPath = .githooks\n",
            "\u{FEFF}[core] hooksPath=a # b\n",
            "[CORE]\r\nHooksPath = a\r\n\r\n[Filter \"A b\"]\r\nclean=x y  \r\n",
            "[filter \"a\\\"b\\\\c\\d\"]\nclean = x\n[filter.Old.One]\nclean = y\n",
            "[a.b \"C\"]\nname = 1\n",
            "[alias]\nx = \"!f() { \\\"a;b\\\" # c\n; }\"\n",
            "[alias]\nx = \"a;b#c\" ; comment\ny = a \"  b  \" c   \n",
            "[core]\npager = a\\\n  b \\\nc\n\tedi-tor=\\t\\b\\n\\\\\\\"x\n",
            "[core]\nbare\nfilemode =\nx = \"\"\n# c\n; d\n[empty]\n",
            "[core] a = 1\n b = 2 ; [x] c\n  [x] d = \"  \"\n",
            "[a \"\"]\nb = c\n",
            "[a]\nb = c",
            "[a]\nb = c \\",
            "[a]\nb = c  \\\n",
            "[a\t\"b]\"]c=d\n",
            "[a]\nb = c\x0b\n",
            "[a]\n\tb\t=\tc\td\t\n",
            "",
        ] {
            let Some(expected) = of_git(content.as_bytes()) else {
                println!("SKIP {content:?}: git does not read it");
                continue;
            };
            assert_eq!(ours(content.as_bytes()), expected, "{content:?}");
        }
    }

    #[test]
    fn random_files_are_read_as_by_git() {
        const BEGIN: [&str; 8] =
            ["name = ", "hooksPath=", "[core]", "[filter \"x\"] a = ", "[a.b]\n", "\tx ", "x=\"", "#"];
        const PARTS: [&str; 16] = [
            "a", "b/c", " ", "\t", "  ", "\\\"", "\\\\", "\\n", "\\\n", "\"d \"", "\";#\"", "#", ";", "=",
            "\r", "]",
        ];
        let (mut state, mut valid) = (0x2545_F491_4F6C_DD1D_u64, 0);
        let mut any = |list: &[&'static str]| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            list[(state >> 8) as usize % list.len()]
        };
        for index in 0..300 {
            let mut content = String::from("[core]\n");
            for _ in 0..3 {
                content.push_str(any(&BEGIN));
                for _ in 0..index % 6 {
                    content.push_str(any(&PARTS));
                }
                content.push_str(any(&["\n", "\n", "\r\n", "\"\n"]));
            }
            // Invalid files are read further than git does.
            if let Some(expected) = of_git(content.as_bytes()) {
                valid += 1;
                assert_eq!(ours(content.as_bytes()), expected, "{content:?}");
            }
        }
        assert!(valid > 30 || of_git(b"").is_none(), "{valid} files are valid");
    }

    #[test]
    fn an_invalid_line_hides_no_other() {
        let found = ours(b"[core]\n!x\nhooksPath = a\n[bad\nb = c\n[x \"y]\n[d]\ne = \"f\ng = h\n");
        assert!(found.contains(&(b"core.hookspath".to_vec(), Some(b"a".to_vec()))));
        assert!(found.contains(&(b"d.g".to_vec(), Some(b"h".to_vec()))));
        assert_eq!(parse(&b"a\n".repeat(MAX_SETTINGS + 2), |_, _| true), None);
    }
}

//! Parses the first line of a script.

use std::io::Read as _;
use std::path::{Path, PathBuf};

/// The kernel reads at most this many bytes of a script.
const MAX_LINE: u64 = 256;

/// The interpreter and arguments in the first line of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shebang {
    /// The path of the interpreter, or a name for the search path of `/usr/bin/env`.
    pub interpreter: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
}

impl Shebang {
    /// Reads the first line of a file.
    ///
    /// None if the file is not a script, or if it passes more than a name to `/usr/bin/env`.
    pub fn read(script: &Path) -> Option<Self> {
        let mut start = Vec::new();
        std::fs::File::open(script).ok()?.take(MAX_LINE).read_to_end(&mut start).ok()?;
        let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
        Self::parse(std::str::from_utf8(line).ok()?.trim())
    }

    fn parse(line: &str) -> Option<Self> {
        let (program, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let (program, rest) = (Path::new(program), rest.trim());
        if !program.is_absolute() {
            return None;
        }
        if !program.ends_with("env") {
            let arguments = Some(rest).filter(|rest| !rest.is_empty()).map(str::to_owned);
            return Some(Self {
                interpreter: program.to_owned(),
                arguments: arguments.into_iter().collect(),
            });
        }
        let split = rest.strip_prefix("-S");
        let mut words = split.unwrap_or(rest).split_whitespace();
        // Only `env` handles quotes, escapes, assignments and options.
        let name = words.next().filter(|name| !name.starts_with('-'))?;
        let arguments: Vec<_> = words.map(str::to_owned).collect();
        let is_plain = !rest.contains(['\'', '"', '\\', '$', '=']);
        // Without `-S` the kernel passes the rest as one word.
        let is_name = split.is_some() || arguments.is_empty();
        (is_plain && is_name && !name.contains('/')).then(|| Self { interpreter: name.into(), arguments })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed_as_by_the_kernel_and_env() {
        for (line, expected) in [
            ("/v/bin/python", Some(("/v/bin/python", vec![]))),
            ("/v/bin/python  -u -X dev", Some(("/v/bin/python", vec!["-u -X dev"]))),
            ("/usr/bin/env python3", Some(("python3", vec![]))),
            ("/usr/bin/env -S python3 -u", Some(("python3", vec!["-u"]))),
            ("/usr/bin/env python3 -u", None),
            ("/usr/bin/env -i python3", None),
            ("/usr/bin/env -S A=1 python3", None),
            ("/usr/bin/env", None),
            ("bin/python", None),
            ("", None),
        ] {
            let expected = expected.map(|(interpreter, arguments)| Shebang {
                interpreter: interpreter.into(),
                arguments: arguments.into_iter().map(str::to_owned).collect(),
            });
            assert_eq!(Shebang::parse(line), expected, "{line}");
        }
    }
}

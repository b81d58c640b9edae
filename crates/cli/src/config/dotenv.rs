//! Files with variables: `NAME=value` on each line.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// The maximum size of a file, in bytes.
const MAX_SIZE: u64 = 1 << 20;

/// The text of a file.
pub(crate) fn content(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_SIZE + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_SIZE {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 1 MiB"));
    }
    Ok(text)
}

/// Parses `NAME=value` lines.
///
/// A name may follow `export`. Single quotes keep everything; double quotes have `\n`, `\t`, `\"` and `\\`. A
/// `#` after a space starts a comment. There is no substitution.
///
/// # Errors
/// The number of the line and the expected form. Values are never part of an error, because they may be
/// secrets.
pub(crate) fn parse(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut variables = BTreeMap::new();
    for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let number = index + 1;
        let line = line.strip_prefix("export ").unwrap_or(line).trim_start();
        let (name, rest) = line
            .split_once('=')
            .ok_or_else(|| format!("line {number}: expected NAME=value, found no `=`"))?;
        let name = name.trim();
        let valid = !name.is_empty()
            && !name.starts_with(|first: char| first.is_ascii_digit())
            && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
        if !valid {
            return Err(format!("line {number}: a name has letters, digits and `_`"));
        }
        let value = value(rest.trim()).map_err(|error| format!("line {number}: {error}"))?;
        variables.insert(name.to_owned(), value);
    }
    Ok(variables)
}

fn value(text: &str) -> Result<String, String> {
    let Some(quote @ ('\'' | '"')) = text.chars().next() else {
        let end = text.find(" #").unwrap_or(text.len());
        return Ok(if text.starts_with('#') { String::new() } else { text[..end].trim_end().to_owned() });
    };
    let mut value = String::new();
    let mut letters = text.chars();
    letters.next();
    while let Some(letter) = letters.next() {
        match letter {
            letter if letter == quote => {
                let rest = letters.as_str().trim_start();
                return if rest.is_empty() || rest.starts_with('#') {
                    Ok(value)
                } else {
                    Err("after the closing quote, expected the end of the line".into())
                };
            }
            '\\' if quote == '"' => match letters.next() {
                Some('n') => value.push('\n'),
                Some('t') => value.push('\t'),
                Some(letter @ ('"' | '\\' | '$')) => value.push(letter),
                Some(other) => value.extend(['\\', other]),
                None => break,
            },
            letter => value.push(letter),
        }
    }
    Err(format!("expected a closing {quote}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_line_forms_parse() {
        let text = "\u{feff}# a comment\nA=1\nexport B = two words # said\nC='x # \\n y'\nD=\"a\\nb\\\"\"\nE=\nF=#none\n";
        let read = parse(text).unwrap();
        let expected =
            [("A", "1"), ("B", "two words"), ("C", "x # \\n y"), ("D", "a\nb\""), ("E", ""), ("F", "")];
        assert_eq!(read, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    }

    #[test]
    fn an_error_names_the_line_without_the_value() {
        for text in ["A=1\nsecret", "A=1\n2B=secret", "A=1\nB='secret", "A=1\nB='x' secret"] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with("line 2: ") && !error.contains("secret"), "{error}");
        }
    }
}

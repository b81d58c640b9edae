//! Command lines without a shell.

/// Splits a command into words: quotes and backslashes as in a shell, nothing else.
///
/// # Errors
/// The quote that is not closed.
pub fn split_command(command: &str) -> Result<Vec<String>, char> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut letters = command.chars();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            ('\\', None | Some('"')) => word.get_or_insert_default().extend(letters.next()),
            (letter, Some(open)) if letter == open => quote = None,
            ('"' | '\'', None) => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (letter, None) if letter.is_whitespace() => words.extend(word.take()),
            (letter, _) => word.get_or_insert_default().push(letter),
        }
    }
    if let Some(open) = quote {
        return Err(open);
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_split_without_a_shell() {
        for (command, expected) in [
            ("a b", vec!["a", "b"]),
            ("  a   'b c'  \"d \\\" e\" f\\ g ", vec!["a", "b c", "d \" e", "f g"]),
            ("a '' $HOME;x|y", vec!["a", "", "$HOME;x|y"]),
            ("", vec![]),
        ] {
            assert_eq!(split_command(command).unwrap(), expected, "{command}");
        }
        assert_eq!(split_command("a 'b"), Err('\''));
    }
}

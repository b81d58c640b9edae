//! The explanation of an internal error on stderr, for the program's author but not for its caller.
//!
//! ```text
//! error: call 01k3…: the index is gone
//!   caused by: index.db: No such file or directory
//! ```

/// Prefix of the first line, before the id.
const START: &str = "error: call ";
/// Prefix of a cause.
const CAUSE: &str = "  caused by: ";
/// Prefix of continuation lines.
const MORE: &str = "\n    ";

/// Formats an error with its causes, without duplicates.
pub(crate) fn explain(call: &str, message: &str, causes: &[String]) -> String {
    let text = |text: &str| text.lines().collect::<Vec<_>>().join(MORE);
    let causes = causes.iter().filter(|cause| *cause != message);
    let first = format!("{START}{call}: {}\n", text(message));
    causes.fold(first, |all, cause| format!("{all}{CAUSE}{}\n", text(cause)))
}

/// A parsed explanation.
#[cfg(feature = "client")]
#[derive(Debug, PartialEq)]
pub(crate) struct Explained<'a> {
    /// The text before it.
    pub(crate) before: &'a str,
    pub(crate) message: String,
    /// The causes, outermost first.
    pub(crate) causes: Vec<String>,
}

/// Parses the explanation of a call's error, if stderr has one.
#[cfg(feature = "client")]
pub(crate) fn read<'a>(stderr: &'a str, call: &str) -> Option<Explained<'a>> {
    let (before, rest) = stderr.rsplit_once(&format!("{START}{call}: "))?;
    let mut lines = rest.lines();
    let mut message = lines.next()?.to_owned();
    let mut causes: Vec<String> = Vec::new();
    for line in lines {
        if let Some(cause) = line.strip_prefix(CAUSE) {
            causes.push(cause.to_owned());
        } else if let Some(more) = line.strip_prefix(MORE.trim_start_matches('\n')) {
            let text = causes.last_mut().unwrap_or(&mut message);
            *text = format!("{text}\n{more}");
        } else {
            break;
        }
    }
    Some(Explained { before, message, causes })
}

#[cfg(all(test, feature = "client"))]
mod tests {
    use super::*;

    #[test]
    fn an_explanation_parses_back() {
        let causes = ["first\nof two lines".to_owned(), "second".to_owned()];
        let text = format!("before\n{}after\n", explain("c1", "gone", &causes));
        let expected = Explained { before: "before\n", message: "gone".into(), causes: causes.to_vec() };
        assert_eq!(read(&text, "c1"), Some(expected));
        assert_eq!(read(&text, "c2"), None);
    }
}

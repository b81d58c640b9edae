//! Words of texts and queries.

/// The maximum length of a word, in characters.
const MAX_WORD: usize = 64;

/// Stop words of queries. A query of stop words alone keeps them.
const STOP_WORDS: &[&str] = &[
    "a", "about", "all", "an", "and", "any", "are", "as", "at", "be", "by", "can", "could", "do", "does",
    "each", "for", "from", "give", "has", "have", "how", "i", "if", "in", "into", "is", "it", "its", "let",
    "many", "me", "must", "my", "need", "of", "on", "or", "our", "please", "shall", "should", "so", "some",
    "tell", "that", "the", "their", "them", "then", "there", "these", "this", "those", "to", "up", "us",
    "want", "was", "we", "what", "when", "where", "which", "who", "will", "with", "would", "you", "your",
];

/// Passes about `max` words of a text to `take`, in lower case, and returns their number. A word consists of
/// letters and digits. A word in camel case, such as `readFile`, also yields its parts.
pub(super) fn words(text: &str, max: usize, mut take: impl FnMut(&str)) -> usize {
    let (mut count, mut lower_case) = (0, String::new());
    let mut give = |word: &str| {
        lower_case.clear();
        lower_into(word, &mut lower_case);
        take(&lower_case);
        count += 1;
        count < max
    };
    for word in text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
        let may_be_camel_case = word.chars().skip(1).any(char::is_uppercase);
        let parts = if may_be_camel_case { camel_case_parts(word) } else { Vec::new() };
        if parts.len() > 1 {
            for part in parts {
                give(part);
            }
        }
        if !give(word) {
            break;
        }
    }
    count
}

fn lower_into(word: &str, into: &mut String) {
    if word.is_ascii() {
        let begin = into.len();
        into.push_str(word.get(..MAX_WORD).unwrap_or(word));
        if let Some(new) = into.get_mut(begin..) {
            new.make_ascii_lowercase();
        }
    } else {
        into.extend(word.chars().take(MAX_WORD).flat_map(char::to_lowercase));
    }
}

fn lower(word: &str) -> String {
    let mut lower = String::new();
    lower_into(word, &mut lower);
    lower
}

/// The parts of a word in camel case.
fn camel_case_parts(word: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut begin, mut after_lower) = (0, false);
    for (at, c) in word.char_indices() {
        if c.is_uppercase() && after_lower {
            parts.push(word.get(begin..at).unwrap_or_default());
            begin = at;
        }
        after_lower = c.is_lowercase() || c.is_numeric();
    }
    parts.push(word.get(begin..).unwrap_or_default());
    parts
}

/// The prefix of compounds, which no other word has.
const COMPOUND: char = '\u{1}';

/// Whether a word is a compound.
pub(super) fn is_compound(word: &str) -> bool {
    word.starts_with(COMPOUND)
}

/// The compounds of a text, such as `tag_0` or `crm.contacts`, at most `max` of them. All separators are equal.
pub(super) fn compounds(text: &str, max: usize) -> impl Iterator<Item = String> + '_ {
    let joins = |c: char| matches!(c, '_' | '-' | '.');
    let chunks = text.split(move |c: char| !c.is_alphanumeric() && !joins(c));
    let joined = chunks.filter_map(move |chunk| {
        let chunk = chunk.trim_matches(joins);
        chunk.contains(joins).then(|| {
            let joined: String = lower(chunk).chars().map(|c| if joins(c) { '_' } else { c }).collect();
            format!("{COMPOUND}{joined}")
        })
    });
    joined.take(max)
}

/// The beginning of a text, at most `max` bytes.
pub(super) fn beginning(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// A text truncated to `max` characters, with an ellipsis.
pub(super) fn truncated(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// The different words of a query without stop words, at most `max` of them, in order.
pub(super) fn query_words(query: &str, max: usize) -> Vec<String> {
    let mut terms: Vec<String> = Vec::new();
    // Parts in camel case would count twice, so a query is split at separators only.
    let all = query.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(lower);
    let mut stop_words = Vec::new();
    for word in all {
        if terms.len() >= max {
            break;
        }
        if terms.contains(&word) {
            continue;
        }
        if STOP_WORDS.binary_search(&word.as_str()).is_ok() {
            if stop_words.len() < max && !stop_words.contains(&word) {
                stop_words.push(word);
            }
        } else {
            terms.push(word);
        }
    }
    if terms.is_empty() { stop_words } else { terms }
}

/// The base forms of a word, without the ending of a plural or of a verb.
pub(super) fn base_forms(word: &str) -> impl Iterator<Item = String> + '_ {
    const ENDINGS: &[(&str, &str)] = &[
        ("ies", "y"),
        ("es", ""),
        ("s", ""),
        ("ing", ""),
        ("ing", "e"),
        ("ed", ""),
        ("d", ""),
        ("r", ""),
        ("er", ""),
    ];
    ENDINGS.iter().filter_map(move |(ending, instead)| {
        let stem = word.strip_suffix(ending)?;
        (stem.chars().count() >= 3).then(|| format!("{stem}{instead}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_words_are_sorted() {
        assert!(STOP_WORDS.is_sorted());
    }

    #[test]
    fn words_end_at_separators_and_camel_case_yields_parts() {
        let words = |text: &str, max: usize| {
            let mut found: Vec<String> = Vec::new();
            assert_eq!(super::words(text, max, |word| found.push(word.to_owned())), found.len());
            found
        };
        assert_eq!(
            words("send_email: E-mails, readFile2 ÄRGER", 99),
            ["send", "email", "e", "mails", "read", "file2", "readfile2", "ärger"]
        );
        assert_eq!(words(&"x".repeat(1000), 9)[0].len(), MAX_WORD);
        assert_eq!(words(&"x ".repeat(1000), 9).len(), 9);
        assert!(words("+-*/ \u{0}", 9).is_empty());
    }

    #[test]
    fn a_query_of_stop_words_keeps_them() {
        assert_eq!(query_words("How do I send the email, the EMAIL?", 9), ["send", "email"]);
        assert_eq!(query_words("to be", 9), ["to", "be"]);
        assert_eq!(query_words("a b c d e", 3), ["b", "c", "d"]);
        assert!(query_words(" ** ", 9).is_empty());
    }

    #[test]
    fn base_forms_drop_endings_of_plurals_and_verbs() {
        let forms: Vec<String> = base_forms("categories").collect();
        assert!(forms.contains(&"category".to_owned()));
        assert!(base_forms("creating").any(|form| form == "create"));
        assert!(base_forms("is").next().is_none());
    }

    #[test]
    fn truncation_is_between_characters() {
        assert_eq!(beginning("aß", 2), "a");
        assert_eq!(truncated("aßc", 2), "aß…");
        assert_eq!(truncated("aß", 2), "aß");
    }
}

//! The words of texts and of queries.

/// How many characters of a word count; nobody searches for a page without a space.
const MAX_WORD: usize = 64;

/// Words of a query that say nothing of what is sought, unless there are no others.
const FILLERS: &[&str] = &[
    "a", "about", "all", "an", "and", "any", "are", "as", "at", "be", "by", "can", "could", "do", "does",
    "each", "for", "from", "give", "has", "have", "how", "i", "if", "in", "into", "is", "it", "its", "let",
    "many", "me", "must", "my", "need", "of", "on", "or", "our", "please", "shall", "should", "so", "some",
    "tell", "that", "the", "their", "them", "then", "there", "these", "this", "those", "to", "up", "us",
    "want", "was", "we", "what", "when", "where", "which", "who", "will", "with", "would", "you", "your",
];

/// Gives out the words of a text in lower case, about `most` of them, and says how many. A word ends at whatever is
/// neither letter nor digit; one with humps, such as `readFile`, also counts by its parts.
pub(super) fn words(text: &str, most: usize, mut take: impl FnMut(&str)) -> usize {
    let (mut count, mut lower_case) = (0, String::new());
    let mut give = |word: &str| {
        lower_case.clear();
        lower_into(word, &mut lower_case);
        take(&lower_case);
        count += 1;
        count < most
    };
    for word in text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
        let may_have_humps = word.chars().skip(1).any(char::is_uppercase);
        let parts = if may_have_humps { humps(word) } else { Vec::new() };
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

/// The parts of a word that begin with a capital letter.
fn humps(word: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut begin, mut after_small) = (0, false);
    for (at, c) in word.char_indices() {
        if c.is_uppercase() && after_small {
            parts.push(word.get(begin..at).unwrap_or_default());
            begin = at;
        }
        after_small = c.is_lowercase() || c.is_numeric();
    }
    parts.push(word.get(begin..).unwrap_or_default());
    parts
}

/// What stands before a word that is made of several, so that it is like no single one.
const COMPOUND: char = '\u{1}';

/// Whether a word is made of several.
pub(super) fn is_compound(word: &str) -> bool {
    word.starts_with(COMPOUND)
}

/// The words of a text that are made of several, such as `tag_0` or `crm.contacts`, at most `most` of them. Which sign
/// joins the parts makes no difference.
pub(super) fn compounds(text: &str, most: usize) -> impl Iterator<Item = String> + '_ {
    let joins = |c: char| matches!(c, '_' | '-' | '.');
    let chunks = text.split(move |c: char| !c.is_alphanumeric() && !joins(c));
    let joined = chunks.filter_map(move |chunk| {
        let chunk = chunk.trim_matches(joins);
        chunk.contains(joins).then(|| {
            let joined: String = lower(chunk).chars().map(|c| if joins(c) { '_' } else { c }).collect();
            format!("{COMPOUND}{joined}")
        })
    });
    joined.take(most)
}

/// The beginning of a text, at most so many bytes.
pub(super) fn beginning(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// A text of at most so many characters, with a mark where something was cut off.
pub(super) fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// The different words of a query that say something, at most `most` of them, in their order.
pub(super) fn query_words(query: &str, most: usize) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    // A hump's parts and its whole would count twice: a query is split at separators alone.
    let all = query.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(lower);
    let mut fillers = Vec::new();
    for word in all {
        if kept.len() >= most {
            break;
        }
        if kept.contains(&word) {
            continue;
        }
        if FILLERS.binary_search(&word.as_str()).is_ok() {
            if fillers.len() < most && !fillers.contains(&word) {
                fillers.push(word);
            }
        } else {
            kept.push(word);
        }
    }
    if kept.is_empty() { fillers } else { kept }
}

/// Other forms of a word that may stand in a text: without the ending of a plural or of a verb.
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
    fn the_fillers_are_in_order() {
        assert!(FILLERS.is_sorted());
    }

    #[test]
    fn words_end_at_separators_and_humps_count_twice() {
        let words = |text: &str, most: usize| {
            let mut found: Vec<String> = Vec::new();
            assert_eq!(super::words(text, most, |word| found.push(word.to_owned())), found.len());
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
    fn a_query_of_fillers_alone_keeps_them() {
        assert_eq!(query_words("How do I send the email, the EMAIL?", 9), ["send", "email"]);
        assert_eq!(query_words("to be", 9), ["to", "be"]);
        assert_eq!(query_words("a b c d e", 3), ["b", "c", "d"]);
        assert!(query_words(" ** ", 9).is_empty());
    }

    #[test]
    fn forms_are_those_of_plurals_and_verbs() {
        let forms: Vec<String> = base_forms("categories").collect();
        assert!(forms.contains(&"category".to_owned()));
        assert!(base_forms("creating").any(|form| form == "create"));
        assert!(base_forms("is").next().is_none());
    }

    #[test]
    fn a_cut_is_between_characters() {
        assert_eq!(beginning("aß", 2), "a");
        assert_eq!(shortened("aßc", 2), "aß…");
        assert_eq!(shortened("aß", 2), "aß");
    }
}

//! A Rust file split into code and comments, line by line: enough of the language's lexis to count code, find words
//! outside strings and read attributes. It does not parse.

/// One line of a Rust file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Line {
    /// The code, with comments removed and every visible character inside a string or character literal replaced by `"`.
    pub code: String,
    /// The text of the comments on this line, their markers included.
    pub comment: String,
    /// Whether the line belongs to an item under `#[cfg(test)]`.
    pub in_test: bool,
}

/// An attribute, `#[…]` or `#![…]`, on one line with its strings blanked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribute {
    /// Index of the line where it begins.
    pub line: usize,
    /// Index of the line where it ends.
    pub end: usize,
    /// Its text without white space.
    pub text: String,
}

/// A Rust source file.
#[derive(Debug, Clone)]
pub struct Source {
    /// The path below the workspace's root, with `/` between its parts.
    pub path: String,
    /// Its lines.
    pub lines: Vec<Line>,
    /// Its attributes, in their order.
    pub attributes: Vec<Attribute>,
    /// The paths below the workspace's root that its `#[path = "…"]` attributes name.
    pub named_paths: Vec<String>,
}

impl Source {
    /// Splits `text`, the content of the file at `path`.
    pub fn new(path: &str, text: &str) -> Self {
        let mut lines = split(text);
        let attributes = attributes(&lines);
        mark_tests(&mut lines, &attributes);
        let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
        let named_paths = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("#[path = \"")?.split('"').next())
            .map(|named| format!("{directory}/{named}"))
            .collect();
        Self { path: path.to_owned(), lines, attributes, named_paths }
    }

    /// The number of lines that hold code.
    pub fn code_lines(&self) -> usize {
        self.lines.iter().filter(|line| !line.code.trim().is_empty()).count()
    }

    /// Whether the file as a whole is test, bench or example code.
    pub fn is_test_file(&self) -> bool {
        self.path.split('/').any(|part| matches!(part, "tests" | "benches" | "examples" | "tests.rs"))
    }
}

/// Where `word` stands in `code` with no letter, digit or underscore on either side. Characters of `word` that are no
/// letters bound themselves.
pub fn find_word(code: &str, word: &str) -> Option<usize> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut from = 0;
    while let Some(at) = code.get(from..).and_then(|rest| rest.find(word)).map(|at| at + from) {
        let end = at + word.len();
        let before = code[..at].chars().next_back().is_some_and(is_word) && word.starts_with(is_word);
        let after = code[end..].chars().next().is_some_and(is_word) && word.ends_with(is_word);
        if !before && !after {
            return Some(at);
        }
        from = end;
    }
    None
}

#[derive(Clone, Copy)]
enum State {
    Code,
    Comment { depth: usize },
    Text { hashes: Option<usize> },
}

fn split(text: &str) -> Vec<Line> {
    let mut state = State::Code;
    let mut lines = Vec::new();
    for raw in text.lines() {
        let characters: Vec<char> = raw.chars().collect();
        let mut line = Line::default();
        let mut at = 0;
        while at < characters.len() {
            at = match state {
                State::Code => code(&characters, at, &mut line, &mut state),
                State::Comment { depth } => comment(&characters, at, depth, &mut line, &mut state),
                State::Text { hashes } => literal(&characters, at, hashes, &mut line, &mut state),
            };
        }
        lines.push(line);
    }
    lines
}

fn code(characters: &[char], at: usize, line: &mut Line, state: &mut State) -> usize {
    let here = characters[at];
    let next = characters.get(at + 1).copied();
    match here {
        '/' if next == Some('/') => {
            line.comment.extend(&characters[at..]);
            characters.len()
        }
        '/' if next == Some('*') => {
            line.comment.push_str("/*");
            *state = State::Comment { depth: 1 };
            at + 2
        }
        '"' => {
            line.code.push('"');
            *state = State::Text { hashes: None };
            at + 1
        }
        'r' if raw_hashes(characters, at).is_some() && !ends_word(&line.code) => {
            let hashes = raw_hashes(characters, at).unwrap_or_default();
            line.code.push('"');
            *state = State::Text { hashes: Some(hashes) };
            at + hashes + 2
        }
        // A character literal closes after one character or an escape; else it is a lifetime.
        '\'' => {
            let end = if next == Some('\\') {
                characters[at + 2..].iter().skip(1).position(|c| *c == '\'').map(|n| at + n + 4)
            } else {
                (characters.get(at + 2) == Some(&'\'')).then_some(at + 3)
            };
            if let Some(end) = end {
                line.code.push_str("\"\"");
                end
            } else {
                line.code.push('\'');
                at + 1
            }
        }
        other => {
            line.code.push(other);
            at + 1
        }
    }
}

/// Whether the code ends within a word of more than a literal's prefix, so that a following `r"` is not a raw string.
fn ends_word(code: &str) -> bool {
    let tail = code.trim_end_matches(|c: char| c.is_alphanumeric() || c == '_');
    !matches!(&code[tail.len()..], "" | "b" | "c")
}

fn raw_hashes(characters: &[char], at: usize) -> Option<usize> {
    let hashes = characters[at + 1..].iter().take_while(|c| **c == '#').count();
    (characters.get(at + 1 + hashes) == Some(&'"')).then_some(hashes)
}

fn comment(characters: &[char], at: usize, depth: usize, line: &mut Line, state: &mut State) -> usize {
    match (characters[at], characters.get(at + 1)) {
        ('*', Some('/')) => {
            line.comment.push_str("*/");
            *state = if depth == 1 { State::Code } else { State::Comment { depth: depth - 1 } };
            at + 2
        }
        ('/', Some('*')) => {
            line.comment.push_str("/*");
            *state = State::Comment { depth: depth + 1 };
            at + 2
        }
        (other, _) => {
            line.comment.push(other);
            at + 1
        }
    }
}

fn literal(
    characters: &[char],
    at: usize,
    hashes: Option<usize>,
    line: &mut Line,
    state: &mut State,
) -> usize {
    let here = characters[at];
    if here == '\\' && hashes.is_none() {
        line.code.push_str("\"\"");
        return at + 2;
    }
    let wanted = hashes.unwrap_or_default();
    if here == '"' && characters[at + 1..].iter().take(wanted).filter(|c| **c == '#').count() == wanted {
        line.code.push('"');
        *state = State::Code;
        return at + 1 + wanted;
    }
    line.code.push(if here.is_whitespace() { ' ' } else { '"' });
    at + 1
}

fn attributes(lines: &[Line]) -> Vec<Attribute> {
    let mut found = Vec::new();
    let mut open: Option<(usize, usize, String)> = None;
    for (number, line) in lines.iter().enumerate() {
        let characters: Vec<char> = line.code.chars().filter(|c| !c.is_whitespace()).collect();
        for (at, here) in characters.iter().enumerate() {
            if let Some((begin, depth, text)) = &mut open {
                text.push(*here);
                match here {
                    '[' => *depth += 1,
                    ']' => *depth -= 1,
                    _ => {}
                }
                if *here == ']' && *depth == 0 {
                    let attribute = Attribute { line: *begin, end: number, text: std::mem::take(text) };
                    found.push(attribute);
                    open = None;
                }
            } else if *here == '#' {
                let rest = &characters[at + 1..];
                if matches!(rest, ['[', ..] | ['!', '[', ..]) {
                    open = Some((number, 0, String::from("#")));
                }
            }
        }
    }
    found
}

/// Marks the item after each `#[cfg(test)]`: up to the brace that closes it, or to a semicolon before any brace.
fn mark_tests(lines: &mut [Line], attributes: &[Attribute]) {
    for attribute in attributes {
        let text = attribute.text.as_str();
        if !(text.starts_with("#[cfg(test") || text.starts_with("#[cfg(all(test")) {
            continue;
        }
        let mut depth = 0usize;
        'item: for (number, line) in lines.iter_mut().enumerate().skip(attribute.line) {
            line.in_test = true;
            if number <= attribute.end {
                continue;
            }
            for here in line.code.chars() {
                match here {
                    '{' => depth += 1,
                    '}' => {
                        depth = depth.saturating_sub(1);
                        if depth == 0 {
                            break 'item;
                        }
                    }
                    ';' if depth == 0 => break 'item,
                    _ => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code_of(text: &str) -> Vec<String> {
        Source::new("src/lib.rs", text).lines.into_iter().map(|line| line.code).collect()
    }

    #[test]
    fn comments_and_literals_are_no_code() {
        let rows = [
            ("let a = 1; // unsafe", "let a = 1; "),
            ("let s = \"unsafe // x\";", "let s = \"\"\"\"\"\"\" \"\" \"\";"),
            ("r#\"a\"b\"# ;", "\"\"\"\"\" ;"),
            ("br\"x\";", "b\"\"\";"),
            ("let c = '\"'; x", "let c = \"\"; x"),
            ("let c = '\\''; x", "let c = \"\"; x"),
            ("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}"),
            ("\"a\\\"b\" c", "\"\"\"\"\"\" c"),
            ("a /* b /* c */ d */ e", "a  e"),
            ("parser\"x\"", "parser\"\"\""),
        ];
        for (text, expected) in rows {
            assert_eq!(code_of(text), [expected], "of {text}");
        }
    }

    #[test]
    fn lines_of_a_long_string_are_code_and_lines_of_a_comment_are_not() {
        let text = "//! Page.\n\n/* a\n b */\nlet s = \"one\ntwo\";\n    // why\nfn f() {}\n";
        assert_eq!(Source::new("src/lib.rs", text).code_lines(), 3);
    }

    #[test]
    fn attributes_are_read_over_several_lines() {
        let source = Source::new(
            "src/lib.rs",
            "#![forbid(unsafe_code)]\n#[expect(\n  a,\n  reason = \"[x]\"\n)]\nfn f() {}",
        );
        let texts: Vec<&str> = source.attributes.iter().map(|a| a.text.as_str()).collect();
        assert_eq!(texts, ["#![forbid(unsafe_code)]", "#[expect(a,reason=\"\"\"\"\")]"]);
        assert_eq!((source.attributes[1].line, source.attributes[1].end), (1, 4));
    }

    #[test]
    fn the_item_under_cfg_test_is_marked_and_no_more() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n  fn b() {}\n}\nfn c() {}\n#[cfg(test)]\nmod d;\nfn e() {}";
        let marked: Vec<bool> =
            Source::new("src/lib.rs", text).lines.iter().map(|line| line.in_test).collect();
        assert_eq!(marked, [false, true, true, true, true, false, true, true, false]);
    }

    #[test]
    fn words_have_bounds() {
        assert_eq!(find_word("forbid(unsafe_code)", "unsafe"), None);
        assert_eq!(find_word("x = unsafe {", "unsafe"), Some(4));
        assert_eq!(find_word("eprintln!(", "println!"), None);
        assert_eq!(find_word("unsafe_a unsafe", "unsafe"), Some(9));
    }
}

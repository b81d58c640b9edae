//! The first lines of code that must stay first: a hashbang, docstrings, directives and imports of `__future__`.

/// The place of inserted statements in code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The offset in bytes.
    at: usize,
    /// Whether other statements follow on the same line.
    is_within_line: bool,
}

impl Place {
    const START: Self = Self { at: 0, is_within_line: false };

    /// The code with statements at this place. Statements for the middle of a line end with a separator.
    pub(crate) fn insert(self, statements: &str, code: &str) -> String {
        let (before, after) = code.split_at(self.at);
        let end = if self.is_within_line { "" } else { "\n" };
        let begin = match before.chars().next_back() {
            None | Some('\n') => "",
            Some(_) if self.is_within_line => " ",
            Some(_) => "\n",
        };
        format!("{before}{begin}{statements}{end}{after}")
    }
}

/// The line after a hashbang.
pub(crate) fn after_hashbang(code: &str) -> Place {
    let line = if code.starts_with("#!") { code.find('\n').map_or(code.len(), |end| end + 1) } else { 0 };
    Place { at: line, is_within_line: false }
}

/// The place after the docstring and the imports of `__future__` of Python code.
pub(crate) fn of_python(code: &str) -> Place {
    let (mut place, mut at, mut is_first, mut has_import) = (Place::START, 0, true, false);
    loop {
        let line = code.get(at..).unwrap_or_default();
        if !place.is_within_line {
            let text = line.split('\n').next().unwrap_or_default();
            if (text.trim().is_empty() || text.trim_start().starts_with('#')) && text.len() < line.len() {
                at += text.len() + 1;
                continue;
            }
        }
        let begin =
            if place.is_within_line { line.len() - line.trim_start_matches([' ', '\t']).len() } else { 0 };
        let statement = line.get(begin..).unwrap_or_default();
        let length = match docstring(statement).filter(|_| is_first) {
            Some(length) => length,
            None => match future_import(statement) {
                Some(length) => {
                    has_import = true;
                    length
                }
                None => break,
            },
        };
        is_first = false;
        let Some(next) = after_statement(code, at + begin + length) else { break };
        (place, at) = (next, next.at);
    }
    let is_comment = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    // The value of code that is only a text is the text.
    let is_text = !has_import && code.get(place.at..).unwrap_or_default().lines().all(is_comment);
    if is_text { Place::START } else { place }
}

/// The place after a statement of Python; `None` if the statement continues.
fn after_statement(code: &str, end: usize) -> Option<Place> {
    let rest = code.get(end..)?;
    let blank = rest.len() - rest.trim_start_matches([' ', '\t']).len();
    let rest = rest.get(blank..)?;
    let line_end = rest.find('\n').map_or(rest.len(), |end| end + 1);
    let next_line = Place { at: end + blank + line_end, is_within_line: false };
    match rest.chars().next() {
        None | Some('\n' | '\r' | '#') => Some(next_line),
        Some(';') => {
            let line = rest.get(1..line_end)?.trim();
            let is_last = line.is_empty() || line.starts_with('#');
            Some(if is_last { next_line } else { Place { at: end + blank + 1, is_within_line: true } })
        }
        Some(_) => None,
    }
}

/// The length of a docstring: one or more literals of plain texts.
fn docstring(code: &str) -> Option<usize> {
    let mut length = 0;
    loop {
        let rest = code.get(length..)?;
        let blank = rest.len() - rest.trim_start_matches([' ', '\t']).len();
        match literal(rest.get(blank..)?) {
            Some(own) => length += blank + own,
            None => return (length > 0).then_some(length),
        }
    }
}

fn literal(code: &str) -> Option<usize> {
    let quoted = code.trim_start_matches(['r', 'R', 'u', 'U']);
    let prefix = code.len() - quoted.len();
    let mark = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|mark| quoted.starts_with(mark))?;
    let mut at = mark.len();
    if prefix > 1 {
        return None;
    }
    loop {
        let rest = quoted.get(at..)?;
        match rest.chars().next()? {
            _ if rest.starts_with(mark) => return Some(prefix + at + mark.len()),
            '\n' if mark.len() == 1 => return None,
            '\\' => at += 1 + rest.chars().nth(1)?.len_utf8(),
            letter => at += letter.len_utf8(),
        }
    }
}

/// The length of an import of `__future__`.
fn future_import(code: &str) -> Option<usize> {
    let rest = code.strip_prefix("from")?;
    let name = rest.trim_start_matches([' ', '\t']);
    if name.len() == rest.len() || !name.starts_with("__future__") {
        return None;
    }
    let (mut depth, mut is_escaped) = (0_i32, false);
    let end = code.char_indices().find(|(_, letter)| {
        let was_escaped = std::mem::replace(&mut is_escaped, *letter == '\\');
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            '\n' => return depth <= 0 && !was_escaped,
            ';' | '#' => return depth <= 0,
            _ => {}
        }
        false
    });
    let end = end.map_or(code.len(), |(at, _)| at);
    Some(code.get(..end)?.trim_end().len())
}

/// The place after the hashbang and the directives of JavaScript code, such as `'use strict'`.
pub(crate) fn of_javascript(code: &str) -> Place {
    let mut place = after_hashbang(code);
    let mut at = place.at;
    loop {
        let begin = at + blank_length(code.get(at..).unwrap_or_default());
        let rest = code.get(begin..).unwrap_or_default();
        let length = if rest.starts_with(['"', '\'']) { literal(rest) } else { None };
        let Some(after) = length.and_then(|length| rest.get(length..)) else { break };
        let line = after.trim_start_matches([' ', '\t']);
        let end = begin + rest.len() - line.len();
        let next = match line.chars().next() {
            Some(';') => Place { at: end + 1, is_within_line: true },
            Some('\n' | '\r') => {
                let following = line.get(blank_length(line)..).unwrap_or_default();
                // The next line may continue the expression.
                if following.starts_with(|next: char| "+-*/%.,([?:=<>&|^`".contains(next)) {
                    break;
                }
                Place { at: end + line.find('\n').map_or(0, |end| end + 1), is_within_line: false }
            }
            _ => break,
        };
        // Code that is only a text has it as its value.
        let following = code.get(next.at..).unwrap_or_default();
        if following.len() == blank_length(following) {
            break;
        }
        (place, at) = (next, next.at);
    }
    place
}

/// The length of white space and comments of JavaScript.
fn blank_length(code: &str) -> usize {
    let mut rest = code;
    loop {
        rest = rest.trim_start();
        let end = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else {
            return code.len() - rest.len();
        };
        rest = rest.get(end..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_python_follow_what_must_be_first() {
        for (code, expected) in [
            ("x + 1", "V; \nx + 1"),
            ("from __future__ import annotations\nx", "from __future__ import annotations\nV; \nx"),
            (
                "# a\n\nfrom __future__ import (a,\n  b)  # c\nx",
                "# a\n\nfrom __future__ import (a,\n  b)  # c\nV; \nx",
            ),
            ("from __future__ import a, \\\n  b\nx", "from __future__ import a, \\\n  b\nV; \nx"),
            ("from __future__ import a; x", "from __future__ import a; V;  x"),
            ("from __future__ import a", "from __future__ import a\nV; \n"),
            ("\"\"\"doc\n'\"\"\"\n__doc__", "\"\"\"doc\n'\"\"\"\nV; \n__doc__"),
            ("r'd\\'oc' 'more'\nx", "r'd\\'oc' 'more'\nV; \nx"),
            ("'doc'; from __future__ import a\nx", "'doc'; from __future__ import a\nV; \nx"),
            ("'doc'; x", "'doc'; V;  x"),
            (
                "'doc'\n# b\nfrom __future__ import a\nfrom x import y\n",
                "'doc'\n# b\nfrom __future__ import a\nV; \nfrom x import y\n",
            ),
            // Texts that are not docstrings, or the value.
            ("'only'", "V; \n'only'"),
            ("'only'\n# end", "V; \n'only'\n# end"),
            ("'a' + x", "V; \n'a' + x"),
            ("'a'.join(x)", "V; \n'a'.join(x)"),
            ("f'{x}'\nx", "V; \nf'{x}'\nx"),
            ("b'x'\nx", "V; \nb'x'\nx"),
            ("'open\nx", "V; \n'open\nx"),
            ("fromage = 1", "V; \nfromage = 1"),
            ("", "V; \n"),
        ] {
            assert_eq!(of_python(code).insert("V; ", code), expected, "{code}");
        }
    }

    #[test]
    fn variables_of_javascript_follow_what_must_be_first() {
        for (code, expected) in [
            ("x + 1", "V; \nx + 1"),
            ("#!/usr/bin/env node\nx", "#!/usr/bin/env node\nV; \nx"),
            ("#!/usr/bin/env node", "#!/usr/bin/env node\nV; \n"),
            ("'use strict'\nx", "'use strict'\nV; \nx"),
            ("// a\n/* b */ \"use strict\"; x", "// a\n/* b */ \"use strict\"; V;  x"),
            ("#!node\n'use strict'; 'other';\nx", "#!node\n'use strict'; 'other'; V; \nx"),
            ("'only'", "V; \n'only'"),
            ("'only'; // end", "V; \n'only'; // end"),
            ("'a'\n+ x", "V; \n'a'\n+ x"),
            ("'a'.length", "V; \n'a'.length"),
            ("'open", "V; \n'open"),
        ] {
            assert_eq!(of_javascript(code).insert("V; ", code), expected, "{code}");
        }
        assert_eq!(
            after_hashbang("#!/bin/sh\necho").insert("x=1; ", "#!/bin/sh\necho"),
            "#!/bin/sh\nx=1; \necho"
        );
    }
}

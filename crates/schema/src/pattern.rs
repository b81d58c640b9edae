//! Generates a text that matches a regular expression.

/// Maximum number of repetitions that are written.
const MAX_REPEATS: usize = 1_000;
/// Maximum nesting of groups.
const MAX_LEVELS: usize = 32;
/// Maximum number of parts that one attempt writes: nested repetitions multiply.
const MAX_STEPS: usize = 20_000;

/// One part of an expression.
enum Node {
    /// One of these characters, as inclusive ranges.
    Set(Vec<(char, char)>),
    /// Parts in order, each with its least and, if bounded, its most repetitions.
    Sequence(Vec<(Node, usize, Option<usize>)>),
    /// One of several alternatives.
    Choice(Vec<Node>),
}

/// A text of `min` to `max` characters that the expression matches, if one is found.
///
/// `variant` selects among several texts. `steps` is the number of parts that may still be written for all texts.
pub(crate) fn matching_text(
    pattern: &str,
    min: usize,
    max: usize,
    variant: usize,
    steps: &mut usize,
) -> Option<String> {
    let characters: Vec<char> = pattern.chars().collect();
    let mut parser = Parser { rest: &characters, level: 0 };
    let node = parser.choice()?;
    if !parser.rest.is_empty() {
        return None;
    }
    // The shortest text first, then longer ones.
    (0..=min.min(MAX_REPEATS)).find_map(|extra| {
        let mut text = String::new();
        let before = MAX_STEPS.min(*steps);
        let mut left = before;
        let written = write(&node, extra, variant, &mut text, &mut left);
        *steps -= before - left;
        written?;
        (min..=max).contains(&text.chars().count()).then_some(text)
    })
}

struct Parser<'a> {
    rest: &'a [char],
    level: usize,
}

impl Parser<'_> {
    fn next(&mut self) -> Option<char> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn eat(&mut self, character: char) -> bool {
        let is_next = self.rest.first() == Some(&character);
        if is_next {
            self.rest = &self.rest[1..];
        }
        is_next
    }

    fn choice(&mut self) -> Option<Node> {
        let mut choices = vec![self.sequence()?];
        while self.eat('|') {
            choices.push(self.sequence()?);
        }
        Some(if choices.len() == 1 { choices.remove(0) } else { Node::Choice(choices) })
    }

    fn sequence(&mut self) -> Option<Node> {
        let mut parts = Vec::new();
        while let Some(&first) = self.rest.first() {
            match first {
                '|' | ')' => break,
                // The pattern matches the whole text.
                '^' | '$' => {
                    self.next();
                    continue;
                }
                _ => {}
            }
            let node = self.atom()?;
            let (least, most) = self.repeats()?;
            parts.push((node, least, most));
        }
        Some(Node::Sequence(parts))
    }

    fn atom(&mut self) -> Option<Node> {
        match self.next()? {
            '(' => {
                self.level += 1;
                if self.level > MAX_LEVELS || (self.eat('?') && !self.eat(':')) {
                    return None;
                }
                let node = self.choice()?;
                self.level -= 1;
                self.eat(')').then_some(node)
            }
            '[' => self.set(),
            '.' => Some(Node::Set(vec![('a', 'z')])),
            '\\' => Some(Node::Set(escape(self.next()?)?)),
            '*' | '+' | '?' | '{' => None,
            literal => Some(Node::Set(vec![(literal, literal)])),
        }
    }

    fn set(&mut self) -> Option<Node> {
        let is_not = self.eat('^');
        let mut ranges: Vec<(char, char)> = Vec::new();
        let mut is_first = true;
        loop {
            let from = match self.next()? {
                ']' if !is_first => break,
                '\\' => {
                    let escaped = escape(self.next()?)?;
                    match escaped.as_slice() {
                        [(from, to)] if from == to => *from,
                        _ => {
                            ranges.extend(escaped);
                            is_first = false;
                            continue;
                        }
                    }
                }
                character => character,
            };
            is_first = false;
            let to = match self.rest {
                ['-', end, ..] if *end != ']' => {
                    let end = *end;
                    self.rest = &self.rest[2..];
                    if end == '\\' { self.next()? } else { end }
                }
                _ => from,
            };
            ranges.push((from, to));
        }
        if !is_not {
            return Some(Node::Set(ranges));
        }
        let is_outside = |character: &char| !ranges.iter().any(|(from, to)| (from..=to).contains(&character));
        let outside = ('a'..='z').chain('A'..='Z').chain('0'..='9').chain(" _-".chars()).find(is_outside)?;
        Some(Node::Set(vec![(outside, outside)]))
    }

    /// The repetitions of the preceding part.
    fn repeats(&mut self) -> Option<(usize, Option<usize>)> {
        let bounds = match self.rest.first() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => {
                let end = self.rest.iter().position(|character| *character == '}')?;
                let inner: String = self.rest.get(1..end)?.iter().collect();
                self.rest = &self.rest[end..];
                match inner.split_once(',') {
                    Some((least, "")) => (least.parse().ok()?, None),
                    Some((least, most)) => (least.parse().ok()?, Some(most.parse().ok()?)),
                    None => {
                        let times = inner.parse().ok()?;
                        (times, Some(times))
                    }
                }
            }
            _ => return Some((1, Some(1))),
        };
        self.next();
        // Greedy or lazy makes no difference here.
        self.eat('?');
        (bounds.0 <= MAX_REPEATS).then_some(bounds)
    }
}

/// The characters that an escape matches.
fn escape(character: char) -> Option<Vec<(char, char)>> {
    Some(match character {
        'd' => vec![('0', '9')],
        'w' => vec![('a', 'z'), ('A', 'Z'), ('0', '9'), ('_', '_')],
        's' => vec![(' ', ' ')],
        'D' | 'S' | 'W' => vec![if character == 'W' { ('-', '-') } else { ('a', 'z') }],
        'n' => vec![('\n', '\n')],
        't' => vec![('\t', '\t')],
        'r' => vec![('\r', '\r')],
        // Word boundaries, properties and back references are unsupported.
        character if character.is_ascii_alphanumeric() => return None,
        literal => vec![(literal, literal)],
    })
}

fn write(node: &Node, extra: usize, variant: usize, text: &mut String, steps: &mut usize) -> Option<()> {
    *steps = steps.checked_sub(1)?;
    match node {
        Node::Set(ranges) => {
            let (from, to) = ranges.get(variant % ranges.len().max(1))?;
            let width = (*to as usize).saturating_sub(*from as usize) + 1;
            let chosen = u32::try_from(*from as usize + variant % width).ok()?;
            text.push(char::from_u32(chosen).unwrap_or(*from));
        }
        Node::Sequence(parts) => {
            for (part, least, most) in parts {
                let times = (least + extra).min(most.unwrap_or(usize::MAX));
                for _ in 0..times.max(*least) {
                    write(part, extra, variant, text, steps)?;
                }
            }
        }
        Node::Choice(choices) => {
            write(choices.get(variant % choices.len().max(1))?, extra, variant, text, steps)?;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matching(pattern: &str, min: usize, max: usize, variant: usize) -> Option<String> {
        matching_text(pattern, min, max, variant, &mut 1_000_000)
    }

    #[test]
    fn a_text_matches_its_pattern() {
        for (pattern, least, expected) in [
            ("^[a-z][a-z0-9_-]{0,63}$", 1, Some("a")),
            ("^[a-z][a-z0-9_-]{0,63}$", 4, Some("aaaa")),
            (r"^\d{4}-\d{2}$", 0, Some("0000-00")),
            (r"^(foo|bar)\.x+$", 0, Some("foo.x")),
            ("^#[0-9A-Fa-f]{6}$", 0, Some("#000000")),
            ("^[^/]+$", 0, Some("a")),
            ("^(?:a|b)?c$", 0, Some("c")),
            ("(?=x)y", 0, None),
            (r"(a)\1", 0, None),
            ("a{2000}", 0, None),
            ("(", 0, None),
            ("*", 0, None),
            ("^ab$", 3, None),
        ] {
            assert_eq!(matching(pattern, least, 1_000, 0).as_deref(), expected, "{pattern}");
        }
        assert_eq!(matching("^[a-c]$", 0, 9, 2).as_deref(), Some("c"));
        assert!(matching(&"(".repeat(100_000), 0, 9, 0).is_none());
        assert!(matching(&format!("{}a{}", "(".repeat(20), "{9}){9}".repeat(10)), 0, 9, 0).is_none());
    }
}

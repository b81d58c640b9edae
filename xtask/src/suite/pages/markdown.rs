//! The fenced code blocks of a page, and what each of them asks for.

use crate::Result;

/// A fenced code block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The line of its fence, from 1.
    pub line: usize,
    /// The language and the other words after the fence.
    pub words: Vec<String>,
    /// Its lines.
    pub text: String,
}

/// The use of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Nothing: data without a file.
    Shown,
    /// Nothing, for this reason.
    NotRun(String),
    /// Its text becomes this file.
    File(String),
    /// Its commands run in the shell of the page.
    Commands(Vec<Command>),
    /// It runs as a program of the Python package.
    Python,
    /// It is a documentation test of the façade.
    Rust,
}

/// A command of a `console` block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// Its line, from 1.
    pub line: usize,
    /// The text that the shell reads.
    pub text: String,
    /// The lines below it, without blank lines at the end. Without any, the command prints what it wants.
    pub expected: Vec<String>,
    /// The exit code that it must end with.
    pub exit_code: i32,
}

/// The reasons of blocks that are not run.
pub const REASONS: &[&str] = &["key", "network", "cluster", "fragment"];

/// Languages of data and of output, which need no file.
const SHOWN: &[&str] = &["css", "html", "json", "text", "toml", "yaml"];

/// The end of a command that must fail: `# exit code 3`.
const EXIT_CODE: &str = "# exit code ";

impl Block {
    /// The language.
    pub fn language(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    /// The rule of the block. Fails for a block that no rule covers.
    pub fn kind(&self) -> Result<Kind> {
        for word in self.words.iter().skip(1) {
            match word.split_once('=') {
                Some(("norun", reason)) if REASONS.contains(&reason) => {
                    return Ok(Kind::NotRun(reason.to_owned()));
                }
                Some(("file", name)) if is_inside(name) => return Ok(Kind::File(name.to_owned())),
                _ if self.language() == "rust" && !word.contains('=') => {}
                _ => {
                    return Err(format!(
                        "unknown word `{word}`; use `file=NAME` or `norun=REASON` with {}",
                        REASONS.join(", ")
                    ));
                }
            }
        }
        match self.language() {
            "console" => commands(self.line, &self.text).map(Kind::Commands),
            "python" => Ok(Kind::Python),
            "rust" => Ok(Kind::Rust),
            language if SHOWN.contains(&language) => Ok(Kind::Shown),
            language => Err(format!("a block in `{language}` needs `file=NAME` or `norun=REASON`")),
        }
    }
}

/// Whether a file stays inside the directory of the page.
fn is_inside(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('/') && name.split('/').all(|part| part != "..")
}

/// The blocks of a page. A fence may be indented, as in a list; its lines lose that indentation.
pub fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut open: Option<(String, usize)> = None;
    for (index, line) in text.lines().enumerate() {
        let rest = line.trim_start();
        let fence: String = rest.chars().take_while(|c| *c == '`').collect();
        match (&open, blocks.last_mut()) {
            (Some((end, _)), _) if rest.trim_end() == end => open = None,
            (Some((_, indent)), Some(block)) => {
                let blank = line.len() - rest.len();
                block.text += &line[blank.min(*indent)..];
                block.text.push('\n');
            }
            _ if fence.len() >= 3 => {
                let words = rest[fence.len()..].split([' ', ',']).filter(|word| !word.is_empty());
                let words = words.map(str::to_owned).collect();
                open = Some((fence, line.len() - rest.len()));
                blocks.push(Block { line: index + 1, words, text: String::new() });
            }
            _ => {}
        }
    }
    blocks
}

/// The commands of a `console` block whose fence is at `fence`.
fn commands(fence: usize, text: &str) -> Result<Vec<Command>> {
    let mut commands: Vec<Command> = Vec::new();
    let mut is_continued = false;
    for (index, line) in text.lines().enumerate() {
        let last = commands.last_mut();
        if let Some(begin) = line.strip_prefix("$ ") {
            let command = Command {
                line: fence + 1 + index,
                text: begin.to_owned(),
                expected: Vec::new(),
                exit_code: 0,
            };
            commands.push(command);
        } else if let Some(command) = last {
            let more = line.strip_prefix("> ").or((line == ">").then_some(""));
            match more.filter(|_| command.expected.is_empty()).or(is_continued.then_some(line)) {
                Some(more) => command.text.extend(["\n", more]),
                None => command.expected.push(line.trim_end().to_owned()),
            }
        } else if !line.trim().is_empty() {
            return Err(format!("expected a command after `$ `, found `{line}`"));
        }
        // A line of output may end so as well.
        let is_command = commands.last().is_some_and(|command| command.expected.is_empty());
        is_continued = is_command && line.ends_with('\\');
    }
    for command in &mut commands {
        while command.expected.last().is_some_and(String::is_empty) {
            command.expected.pop();
        }
        if let Some((_, number)) = command.text.rsplit_once(EXIT_CODE) {
            command.exit_code = number
                .trim()
                .parse()
                .map_err(|_| format!("expected a number after `{EXIT_CODE}`, found `{number}`"))?;
        }
    }
    if commands.is_empty() {
        return Err("a `console` block needs a line that begins with `$ `".to_owned());
    }
    Ok(commands)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(words: &str, text: &str) -> Result<Kind> {
        let words = words.split(' ').map(str::to_owned).collect();
        Block { line: 1, words, text: text.to_owned() }.kind()
    }

    fn command(line: usize, text: &str, expected: &[&str], exit_code: i32) -> Command {
        let expected = expected.iter().map(|line| (*line).to_owned()).collect();
        Command { line, text: text.to_owned(), expected, exit_code }
    }

    #[test]
    fn fences_nest_and_indent() {
        let text =
            "# A\n\n````md\n```sh\n````\n\n1. One\n   ```toml file=a.toml\n   [a]\n     b = 1\n   ```\n";
        let block = |line, words: &[&str], text: &str| Block {
            line,
            words: words.iter().map(|word| (*word).to_owned()).collect(),
            text: text.to_owned(),
        };
        let expected = [block(3, &["md"], "```sh\n"), block(8, &["toml", "file=a.toml"], "[a]\n  b = 1\n")];
        assert_eq!(blocks(text), expected);
    }

    #[test]
    fn blocks_ask_for_one_thing() {
        assert_eq!(kind("toml file=a/b.toml", ""), Ok(Kind::File("a/b.toml".to_owned())));
        assert_eq!(kind("console norun=key", ""), Ok(Kind::NotRun("key".to_owned())));
        assert_eq!(kind("python", ""), Ok(Kind::Python));
        assert_eq!(kind("rust no_run", ""), Ok(Kind::Rust));
        assert_eq!(kind("json", ""), Ok(Kind::Shown));
        let wrong =
            ["toml file=../a", "toml file=/a", "console norun=later", "sh", "", "console", "python slow"];
        for words in wrong {
            assert!(kind(words, "").is_err(), "{words}");
        }
    }

    #[test]
    fn commands_have_output_and_exit_codes() {
        let text = "$ one \\\n  --two\n1\n\n2\n\n$ cat <<E\n> a\n>\n> E\n$ three  # exit code 5\nerror: …\n";
        let expected = [
            command(2, "one \\\n  --two", &["1", "", "2"], 0),
            command(8, "cat <<E\na\n\nE", &[], 0),
            command(12, "three  # exit code 5", &["error: …"], 5),
        ];
        assert_eq!(kind("console", text), Ok(Kind::Commands(expected.to_vec())));
        assert!(kind("console", "one\n").is_err());
        assert!(kind("console", "$ one # exit code x\n").is_err());
    }
}

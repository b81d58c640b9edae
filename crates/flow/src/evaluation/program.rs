//! Which words of a command line are code, or name what runs.
//!
//! Interpreters and programs that start others are known by name. The words of other programs are data, except the first
//! one and options.

/// A word of a command line.
pub(super) enum Word<'a> {
    Constant(&'a str),
    /// A value, or a text with one. The text is unknown before the call.
    Value {
        text: Option<&'a str>,
        has_prefix: bool,
    },
}

/// The decider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Word(usize),
    /// The standard input.
    Input,
}

/// Programs that start the program of their arguments, or whose arguments and input are code.
const STARTERS: &[&str] = &[
    "at",
    "batch",
    "bunx",
    "busybox",
    "chroot",
    "chrt",
    "cmd",
    "command",
    "doas",
    "duckdb",
    "ed",
    "emacs",
    "entr",
    "env",
    "eval",
    "ex",
    "exec",
    "expect",
    "fish",
    "flock",
    "gdb",
    "ionice",
    "irb",
    "ltrace",
    "make",
    "mysql",
    "nice",
    "nohup",
    "npx",
    "nsenter",
    "nvim",
    "osascript",
    "parallel",
    "powershell",
    "prlimit",
    "psql",
    "pwsh",
    "rsh",
    "runuser",
    "script",
    "setpriv",
    "setsid",
    "sqlite",
    "ssh",
    "stdbuf",
    "strace",
    "su",
    "sudo",
    "systemd-run",
    "taskset",
    "time",
    "timeout",
    "tmux",
    "toolpost",
    "toybox",
    "unshare",
    "uvx",
    "vi",
    "vim",
    "watch",
    "xargs",
];
/// Programs that do so with a command of [`COMMANDS`].
const RUNNERS: &[&str] = &[
    "bun", "conda", "deno", "docker", "go", "kubectl", "mamba", "mise", "nerdctl", "npm", "pdm", "pipenv",
    "pipx", "pnpm", "podman", "poetry", "uv", "yarn",
];
const COMMANDS: &[&str] = &["create", "dlx", "eval", "exec", "repl", "run", "run-script", "shell", "x"];
/// The options of `find` that start a program.
const FIND: [&str; 4] = ["-exec", "-execdir", "-ok", "-okdir"];
/// Scripts that are the standard input.
const INPUTS: [&str; 4] = ["-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"];

/// A program that runs the code of its arguments, of a file or of its input. The texts have the letters of its options.
struct Interpreter {
    names: &'static [&'static str],
    /// Without a value.
    flags: &'static str,
    /// With a value: the rest of the word, or the next word.
    valued: &'static str,
    /// A variant, with a value that is data.
    data: &'static str,
    /// A variant, with a value that is code.
    code: &'static str,
    /// The rest of the word is the value.
    attached: &'static str,
    /// Long options with a value that is code.
    long: &'static [&'static str],
    /// The input is code all the same.
    input: &'static str,
}

const NONE: Interpreter =
    Interpreter { names: &[], flags: "", valued: "", data: "", code: "", attached: "", long: &[], input: "" };

/// The first operand of all of them is a script, unless an option had code; of a shell with `-c`, it is a command line.
const INTERPRETERS: [Interpreter; 10] = [
    Interpreter {
        names: &["ash", "bash", "dash", "ksh", "mksh", "rbash", "sh", "zsh"],
        flags: "abcefhklmnpruvxBCEHPT",
        valued: "oO",
        input: "s",
        ..NONE
    },
    Interpreter { names: &["pypy", "python"], flags: "bBdEIOPqsSuvx", valued: "WX", code: "cm", ..NONE },
    Interpreter {
        names: &["node", "nodejs"],
        flags: "",
        valued: "r",
        code: "ep",
        long: &["--eval", "--print"],
        ..NONE
    },
    Interpreter { names: &["perl"], flags: "acnpswW", valued: "I", code: "eE", attached: "0ilFmM", ..NONE },
    Interpreter { names: &["ruby"], flags: "acnpswW", valued: "Ir", code: "e", ..NONE },
    Interpreter { names: &["php"], flags: "nq", valued: "cdz", code: "BEFRfr", ..NONE },
    Interpreter { names: &["lua", "luajit"], flags: "EW", valued: "l", code: "e", ..NONE },
    Interpreter { names: &["awk", "gawk", "mawk", "nawk"], data: "vF", code: "ef", ..NONE },
    Interpreter { names: &["gsed", "sed"], flags: "Enrsuz", code: "ef", attached: "il", ..NONE },
    Interpreter {
        names: &[
            "Rscript", "elixir", "groovy", "guile", "julia", "octave", "racket", "swipl", "tclsh", "tsx",
            "wish",
        ],
        code: "e",
        ..NONE
    },
];

/// The first word, or the input, that decides what runs, and whether it does as an option. `has_input`: the standard input
/// has a value.
pub(super) fn evaluated(words: &[Word<'_>], has_input: bool) -> Option<(Place, bool)> {
    let program = match words.first()? {
        Word::Constant(program) => base_name(program),
        Word::Value { .. } => return Some((Place::Word(0), false)),
    };
    let is_value = |word: &Word<'_>| matches!(word, Word::Value { .. });
    let input = has_input.then_some(Place::Input);
    let any = || words.iter().position(is_value).map(Place::Word).or(input);
    let has =
        |list: &[&str]| words.iter().any(|word| matches!(word, Word::Constant(text) if list.contains(text)));
    let runs = STARTERS.contains(&program)
        || (program == "find" && has(&FIND))
        || (RUNNERS.contains(&program) && (has(COMMANDS) || !names_command(words)));
    let interpreter = INTERPRETERS.iter().find(|interpreter| interpreter.names.contains(&program));
    let found = match interpreter {
        _ if runs => any(),
        Some(interpreter) => interpreter.evaluated(words, input).unwrap_or_else(|UnknownOption| any()),
        None => None,
    };
    match found {
        Some(place) => Some((place, false)),
        None => option(words).map(|index| (Place::Word(index), true)),
    }
}

/// Whether the first operand is not a value.
fn names_command(words: &[Word<'_>]) -> bool {
    let mut rest = words.iter().skip(1);
    matches!(
        rest.find(|word| !matches!(word, Word::Constant(text) if text.starts_with('-'))),
        Some(Word::Constant(_))
    )
}

/// An option that may take the next word.
struct UnknownOption;

impl Interpreter {
    /// The first word or the input that is code.
    fn evaluated(&self, words: &[Word<'_>], input: Option<Place>) -> Result<Option<Place>, UnknownOption> {
        let mut rest = words.iter().enumerate().skip(1);
        let mut has_code = false;
        while let Some((index, word)) = rest.next() {
            let Word::Constant(text) = word else {
                // After an option with code it is an operand: no value becomes an option.
                return Ok(Some(Place::Word(index)).filter(|_| !has_code));
            };
            if text.starts_with('+') && !self.input.is_empty() {
                return Err(UnknownOption);
            }
            let letters = match text.strip_prefix('-') {
                Some("-") if has_code => return Ok(None),
                Some("-") => match rest.next() {
                    Some((index, Word::Value { .. })) => return Ok(Some(Place::Word(index))),
                    Some((_, Word::Constant(script))) => {
                        return Ok(input.filter(|_| INPUTS.contains(script)));
                    }
                    None => return Ok(input),
                },
                Some("") | None => return Ok(input.filter(|_| !has_code && INPUTS.contains(text))),
                Some(long) if long.starts_with('-') => {
                    let (name, value) =
                        text.split_once('=').map_or((*text, None), |(name, value)| (name, Some(value)));
                    if !self.long.contains(&name) {
                        return Err(UnknownOption);
                    }
                    has_code = true;
                    if value.is_none()
                        && let Some((index, Word::Value { .. })) = rest.next()
                    {
                        return Ok(Some(Place::Word(index)));
                    }
                    continue;
                }
                Some(letters) => letters,
            };
            for (at, letter) in letters.char_indices() {
                let has_rest = at + letter.len_utf8() < letters.len();
                if self.flags.contains(letter) {
                    continue;
                }
                if self.input.contains(letter) {
                    if input.is_some() {
                        return Ok(input);
                    }
                    continue;
                }
                let takes_value =
                    [self.valued, self.data, self.code].iter().any(|kind| kind.contains(letter));
                if !takes_value && !self.attached.contains(letter) {
                    return Err(UnknownOption);
                }
                has_code |= self.code.contains(letter);
                if takes_value
                    && !has_rest
                    && let Some((index, Word::Value { .. })) = rest.next()
                    && !self.data.contains(letter)
                {
                    return Ok(Some(Place::Word(index)));
                }
                break;
            }
        }
        Ok(input.filter(|_| !has_code))
    }
}

/// The first value that a program would take as an option: its text starts with `-`, and no `--` is before it.
fn option(words: &[Word<'_>]) -> Option<usize> {
    let operands = words.iter().position(|word| matches!(word, Word::Constant("--"))).unwrap_or(words.len());
    words.iter().take(operands).position(|word| match word {
        Word::Value { text: Some(text), has_prefix: false } => {
            text.len() > 1 && text.starts_with('-') && text.parse::<f64>().is_err()
        }
        _ => false,
    })
}

/// The name of a program without its directory and version: `python` of `/usr/bin/python3.12`.
fn base_name(program: &str) -> &str {
    let name = program.rsplit('/').next().unwrap_or_default();
    let name = name.strip_suffix(".exe").unwrap_or(name);
    name.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '.').trim_end_matches('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The place of a command line whose values are marked with `$`.
    fn place(line: &str, has_input: bool) -> Option<(Place, bool)> {
        let words: Vec<Word<'_>> = line
            .split(' ')
            .map(|word| match word.find('$') {
                None => Word::Constant(word),
                Some(at) => Word::Value { text: word.get(at + 1..), has_prefix: at > 0 },
            })
            .collect();
        evaluated(&words, has_input)
    }

    #[test]
    fn words_that_decide_what_runs_are_found() {
        for (line, expected) in [
            ("$x", Some(0)),
            ("./$x a", Some(0)),
            ("sh $x", Some(1)),
            ("sh -c $x", Some(2)),
            ("sh -ec $x", Some(2)),
            ("sh -e$x -c true", Some(1)),
            ("bash --norc $x", Some(2)),
            ("bash +x $x", Some(2)),
            ("bash -o pipefail -c $x", Some(4)),
            ("bash -o $x -c true", Some(2)),
            ("zsh -- $x", Some(2)),
            ("/usr/bin/python3.12 -c $x", Some(2)),
            ("python3 -u -W ignore $x", Some(4)),
            ("python3 -m $x", Some(2)),
            ("python3 -Wignore $x", Some(2)),
            ("python3 --unknown value $x", Some(3)),
            ("pypy3 $x.py", Some(1)),
            ("node -e $x", Some(2)),
            ("node --eval=$x", Some(1)),
            ("node -r module $x", Some(3)),
            ("node --require module $x", Some(3)),
            ("perl -MList::Util -e $x", Some(3)),
            ("perl -i.bak -pe $x file", Some(3)),
            ("ruby -r set -e $x", Some(4)),
            ("php -r $x", Some(2)),
            ("lua5.4 -e $x", Some(2)),
            ("Rscript -e $x", Some(2)),
            ("gawk -f $x", Some(2)),
            ("awk -F , $x file", Some(3)),
            ("sed -e $x file", Some(2)),
            ("sed -i.bak $x file", Some(2)),
            ("julia $x", Some(1)),
            ("env $x", Some(1)),
            ("env A=$x true", Some(1)),
            ("timeout 5 $x", Some(2)),
            ("xargs -n 1 $x", Some(3)),
            ("find . -name a -execdir $x ;", Some(5)),
            ("uv run $x", Some(2)),
            ("npm $x", Some(1)),
            ("npm --silent $x", Some(2)),
            ("npx $x", Some(1)),
            ("kubectl exec pod -- $x", Some(4)),
            ("pwsh -Command $x", Some(2)),
            ("sqlite3 a.db $x", Some(2)),
            ("sh script $x", None),
            ("sh -c true $x", None),
            ("sh -euc true name $x", None),
            ("python3 -c pass $x", None),
            ("python3 -Im module $x", None),
            ("python3 -W ignore script.py $x", None),
            ("node script.js $x", None),
            ("perl -ne print $x", None),
            ("node -e 1 $x", None),
            ("perl -ne print -- $x", None),
            ("awk -v a=$x {print} $x", None),
            ("awk -F $x {print} file", None),
            ("sed -n 5p $x", None),
            ("find $x -type f", None),
            ("npm view $x", None),
            ("docker logs $x", None),
            ("shellcheck $x", None),
            ("grep python $x", None),
        ] {
            let expected = expected.map(|index| (Place::Word(index), false));
            assert_eq!(place(line, false), expected, "{line}");
        }
    }

    #[test]
    fn input_that_runs_is_found() {
        for (line, is_code) in [
            ("sh", true),
            ("bash -eu", true),
            ("bash -s a b", true),
            ("sh -", true),
            ("sh /dev/stdin a", true),
            ("sh -- /dev/fd/0", true),
            ("python3 -u -", true),
            ("python3 -i script.py", true),
            ("node", true),
            ("node --require module", true),
            ("perl -w", true),
            ("env sh", true),
            ("ssh host", true),
            ("sqlite3 a.db", true),
            ("uv run python", true),
            ("sh -c cat", false),
            ("sh script", false),
            ("python3 -c pass", false),
            ("python3 -m module -", false),
            ("perl -ne print", false),
            ("node -e 1", false),
            ("awk {print}", false),
            ("jq .a", false),
            ("docker logs a", false),
        ] {
            assert_eq!(place(line, true), is_code.then_some((Place::Input, false)), "{line}");
        }
    }

    #[test]
    fn options_are_not_values() {
        for (line, expected) in [
            ("grep $-f file", Some(1)),
            ("tar czf a.tgz $--checkpoint-action=exec=sh", Some(3)),
            ("python3 script.py $-x", Some(2)),
            ("grep -- $-f", None),
            ("grep --file=$-f", None),
            ("seq $-5 $-0.5e3", None),
            ("cat $-", None),
            ("cat $a-b", None),
        ] {
            assert_eq!(place(line, false), expected.map(|index| (Place::Word(index), true)), "{line}");
        }
    }
}

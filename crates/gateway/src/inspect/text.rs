//! Detection of hidden characters, confusable letters and instructions in texts.

use super::FindingKind;

/// The maximum number of combining marks on one letter.
const MAX_MARKS: usize = 4;
/// The minimum number of styled letters in a word; fewer are symbols.
const MIN_STYLED: usize = 3;

/// The hidden, bidirectional and control characters of a text, with their positions.
pub(super) fn hidden(text: &str) -> impl Iterator<Item = (usize, FindingKind)> {
    let mut before = ' ';
    let mut selectors = 0;
    let mut marks = 0;
    let mut rest = text.char_indices().peekable();
    std::iter::from_fn(move || {
        loop {
            let (at, one) = rest.next()?;
            let after = rest.peek().map_or(' ', |(_, after)| *after);
            selectors = if is_selector(one) { selectors + 1 } else { 0 };
            marks = if is_mark(one) { marks + 1 } else { 0 };
            let is_fine = match one {
                // Joiners are legitimate in several scripts and in emoji, between two of their characters.
                '\u{200c}' | '\u{200d}' => takes_joiners(before) && takes_joiners(after),
                // A single variation selector is legitimate after a character with two styles.
                '\u{fe0e}' | '\u{fe0f}' if selectors == 1 => {
                    (before >= '\u{a9}' && !before.is_alphabetic()) || after == '\u{20e3}'
                }
                '\u{fe00}'..='\u{fe0d}' if selectors == 1 => before >= '\u{2000}',
                _ => false,
            };
            before = one;
            if is_fine {
                continue;
            }
            if marks > MAX_MARKS {
                return Some((at, FindingKind::HiddenCharacter));
            }
            if let Some(kind) = suspicious(one) {
                return Some((at, kind));
            }
        }
    })
}

/// Whether a joiner is legitimate beside a character: in joining scripts and in emoji.
fn takes_joiners(one: char) -> bool {
    one >= '\u{0590}'
        && !matches!(one, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
}

fn is_selector(one: char) -> bool {
    matches!(one, '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e01ef}')
}

fn is_mark(one: char) -> bool {
    matches!(
        one,
        '\u{0300}'..='\u{036f}'
            | '\u{1ab0}'..='\u{1aff}'
            | '\u{1dc0}'..='\u{1dff}'
            | '\u{20d0}'..='\u{20ff}'
            | '\u{fe20}'..='\u{fe2f}'
    )
}

/// The finding for a character on its own.
fn suspicious(one: char) -> Option<FindingKind> {
    match one {
        '\n' | '\t' | '\r' => None,
        '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            Some(FindingKind::Bidirectional)
        }
        // Variation selectors, and unassigned code points that programs show as nothing.
        '\u{e0000}'..='\u{e0fff}' | '\u{fe00}'..='\u{fe0f}' => Some(FindingKind::TagCharacter),
        '\u{00ad}'
        | '\u{034f}'
        | '\u{115f}'
        | '\u{1160}'
        | '\u{17b4}'
        | '\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200d}'
        | '\u{2060}'..='\u{2065}'
        | '\u{206a}'..='\u{206f}'
        | '\u{2800}'
        | '\u{3164}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{fff0}'..='\u{fffb}'
        | '\u{110bd}'
        | '\u{110cd}'
        | '\u{13430}'..='\u{1343f}'
        | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}'
        // Private-use characters have no public meaning.
        | '\u{e000}'..='\u{f8ff}'
        | '\u{f0000}'..='\u{10ffff}' => Some(FindingKind::HiddenCharacter),
        '\u{2028}' | '\u{2029}' => Some(FindingKind::ControlCharacter),
        _ if one.is_control() => Some(FindingKind::ControlCharacter),
        _ => None,
    }
}

/// Escapes a character if it is invisible.
pub(super) fn escaped(one: char) -> Vec<char> {
    if suspicious(one).is_some() || is_mark(one) {
        return one.escape_unicode().collect();
    }
    one.escape_debug().collect()
}

/// The Latin letter or digit that a character resembles.
fn plain(one: char) -> Option<char> {
    let among = |from: u32, count: u32, first: u8| {
        let place = (one as u32).checked_sub(from).filter(|place| *place < count)?;
        char::from_u32(u32::from(first) + place)
    };
    let code = one as u32;
    Some(match code {
        // 13 mathematical alphabets of capital and small letters: bold, italic, script, Fraktur and others.
        0x1d400..=0x1d6a3 => among(0x1d400 + (code - 0x1d400) / 26 * 26, 26, b'a')?,
        0x1d7ce..=0x1d7ff => among(0x1d7ce + (code - 0x1d7ce) / 10 * 10, 10, b'0')?,
        0xff10..=0xff19 => among(0xff10, 10, b'0')?,
        0xff21..=0xff3a => among(0xff21, 26, b'a')?,
        0xff41..=0xff5a => among(0xff41, 26, b'a')?,
        0x249c..=0x24b5 => among(0x249c, 26, b'a')?,
        0x24b6..=0x24cf => among(0x24b6, 26, b'a')?,
        0x24d0..=0x24e9 => among(0x24d0, 26, b'a')?,
        0x1f110..=0x1f129 => among(0x1f110, 26, b'a')?,
        0x1f130..=0x1f149 => among(0x1f130, 26, b'a')?,
        0x1f150..=0x1f169 => among(0x1f150, 26, b'a')?,
        0x1f170..=0x1f189 => among(0x1f170, 26, b'a')?,
        _ => LOOKALIKES.iter().find(|(_, strange)| strange.contains(one)).map(|(letter, _)| *letter)?,
    })
}

/// Letters of other scripts, phonetic letters and letters with marks, by the Latin letter that they resemble.
const LOOKALIKES: &[(char, &str)] = &[
    ('a', "àáâãäåāăąаАαΑᴀɑ"),
    ('b', "ВвΒʙЬᏴ"),
    ('c', "çćсСϲⅽᴄᏟ"),
    ('d', "ԁďᴅⅾᎠ"),
    ('e', "èéêëēėęеЕΕεᴇℯᎬ"),
    ('f', "ꜰƒ"),
    ('g', "ɡɢԍğℊ"),
    ('h', "һНнΗհℎʜ"),
    ('i', "ìíîïīіІιΙıɪⅰ"),
    ('j', "јЈϳᴊ"),
    ('k', "кКκΚᴋ"),
    ('l', "ӏⅼłʟ"),
    ('m', "мМΜⅿᴍ"),
    ('n', "ñńпηոɴΝ"),
    ('o', "òóôõöøōоОοΟσօᴏℴ"),
    ('p', "рРρΡᴘ"),
    ('q', "ԛɋ"),
    ('r', "гʀᴦ"),
    ('s', "śšѕЅꜱ"),
    ('t', "тТτΤᴛ"),
    ('u', "ùúûüūυսᴜ"),
    ('v', "ѵνᴠⅴ"),
    ('w', "ԝωшᴡ"),
    ('x', "хХχΧⅹ"),
    ('y', "ýÿуУγΥʏ"),
    ('z', "źżžΖᴢ"),
];

/// Words with confusable letters.
pub(super) struct Disguise<'a> {
    text: &'a str,
    /// Whether most words are Latin, so that a confusable word is suspicious.
    is_latin: bool,
}

impl<'a> Disguise<'a> {
    pub(super) fn from_text(text: &'a str) -> Self {
        let (mut latin, mut others) = (0_usize, 0_usize);
        if !text.is_ascii() {
            for word in words(text) {
                if word.is_ascii() {
                    latin += 1;
                } else if is_strange_word(word) {
                    others += 1;
                }
            }
        }
        Self { text, is_latin: latin > others }
    }

    /// The first such word.
    pub(super) fn find(&self) -> Option<&'a str> {
        if self.text.is_ascii() {
            return None;
        }
        words(self.text).find(|word| {
            let latin = word.chars().filter(char::is_ascii_alphabetic).count();
            let strange = word.chars().filter(|one| is_of_other_script(*one)).count();
            let styled = word.chars().filter(|one| is_styled(*one)).count();
            (latin >= 2 && strange >= 1)
                || styled >= MIN_STYLED
                || (styled >= 1 && latin >= 2)
                || (self.is_latin && is_strange_word(word) && word.chars().all(|one| plain(one).is_some()))
        })
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|one: char| !one.is_alphanumeric() && !is_styled(one)).filter(|word| !word.is_empty())
}

/// Whether a word has at least three letters, all Greek, Cyrillic, Armenian or Cherokee.
fn is_strange_word(word: &str) -> bool {
    word.chars().count() >= 3 && word.chars().all(is_of_other_script)
}

fn is_of_other_script(one: char) -> bool {
    matches!(
        one,
        '\u{0370}'..='\u{052f}' | '\u{0531}'..='\u{058a}' | '\u{13a0}'..='\u{13ff}' | '\u{ab70}'..='\u{abbf}'
    )
}

/// Whether a letter is styled: mathematical, full-width, enclosed, or a small capital.
fn is_styled(one: char) -> bool {
    matches!(
        one,
        '\u{1d400}'..='\u{1d7ff}'
            | '\u{ff21}'..='\u{ff3a}'
            | '\u{ff41}'..='\u{ff5a}'
            | '\u{249c}'..='\u{24e9}'
            | '\u{1f110}'..='\u{1f189}'
            | '\u{1d00}'..='\u{1d22}'
    )
}

/// Known phrases of instructions to a model, in lower case with single spaces.
const PHRASES: &[&str] = &[
    "<important>",
    "<!--",
    "<|im_start|>",
    "<|system|>",
    "<<sys>>",
    "[inst]",
    "<system>",
    "[system]",
    "system prompt",
    "ignore all previous",
    "ignore previous",
    "ignore the previous",
    "ignore any previous",
    "disregard previous",
    "disregard all previous",
    "disregard the above",
    "ignore the above",
    "ignore all other",
    "ignore your instructions",
    "forget your instructions",
    "override your instructions",
    "new instructions:",
    "do not tell the user",
    "don't tell the user",
    "do not mention",
    "don't mention this",
    "do not inform the user",
    "without telling the user",
    "without asking the user",
    "do not ask the user",
    "never tell the user",
    "never mention",
    "do not reveal",
    "hide this from",
    "keep this secret",
    "before using this tool",
    "before calling this tool",
    "before using any other tool",
    "you must first",
    "you must always",
    "always call this tool",
    "always use this tool",
    "call this tool first",
    "must be called before",
    "conversation history",
    "instead of any other tool",
    "when any other tool",
    "this tool replaces",
    "you are now",
    "~/.ssh",
    "id_rsa",
    "~/.aws",
    "/etc/passwd",
    "/etc/shadow",
    ".cursor/mcp.json",
    ".claude.json",
];

/// The position of the first such phrase.
pub(super) fn instruction(text: &str) -> Option<usize> {
    // The normalized text, and the original position of each of its bytes.
    let mut folded = String::with_capacity(text.len());
    let mut places = Vec::with_capacity(text.len());
    let mut spaced = true;
    for (at, one) in text.char_indices() {
        if one.is_whitespace() {
            if !spaced {
                folded.push(' ');
                places.push(at);
            }
            spaced = true;
        } else if suspicious(one).is_none() && !is_mark(one) && !matches!(one, '*' | '`' | '"' | ',') {
            spaced = false;
            let like = match one {
                '\u{2018}' | '\u{2019}' => '\'',
                one if one.is_ascii() => one.to_ascii_lowercase(),
                one => plain(one).unwrap_or(one),
            };
            folded.push(like);
            places.extend(std::iter::repeat_n(at, like.len_utf8()));
        }
    }
    let found = PHRASES.iter().filter_map(|phrase| folded.find(phrase)).min()?;
    places.get(found).copied()
}

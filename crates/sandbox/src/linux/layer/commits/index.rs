//! Reads git's index: its entries and its cached trees.
//!
//! Code can write any index. What git would read in two ways is an error: offsets of the extensions for several threads
//! must be those of the entries, and lengths of names those of their texts.

use std::collections::{HashMap, HashSet};

/// The mode of a directory in a sparse index.
const DIRECTORY: u32 = 0o040_000;
/// The maximum depth of cached trees.
const MAX_DEPTH: usize = 256;

/// The bytes of an object's id.
pub(super) type ObjectId = Vec<u8>;

/// An entry of an index or of a tree.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct GitEntry {
    pub(super) path: Vec<u8>,
    pub(super) mode: u32,
    pub(super) id: ObjectId,
}

/// The content of an index.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Index {
    pub(super) entries: HashSet<GitEntry>,
    /// The trees that git takes instead of entries: cached ones, and directories of a sparse index.
    pub(super) trees: HashMap<Vec<u8>, ObjectId>,
}

impl Index {
    /// The entries that another index does not have, and those that this one misses, with a mode of 0.
    pub(super) fn added<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = GitEntry> + 'a {
        let paths: HashSet<&[u8]> = self.entries.iter().map(|entry| entry.path.as_slice()).collect();
        let new = self.entries.difference(&other.entries).cloned();
        let missing = other.entries.iter().filter(move |entry| !paths.contains(entry.path.as_slice()));
        new.chain(missing.map(|entry| GitEntry { path: entry.path.clone(), mode: 0, id: ObjectId::new() }))
    }
}

/// The reason for which an index is not read.
pub(super) type Unreadable = &'static str;

const TRUNCATED: Unreadable = "it is truncated";
const AMBIGUOUS: Unreadable = "it can be read in two ways";

/// The rest of a file.
struct Rest<'a> {
    all: &'a [u8],
    at: usize,
}

impl<'a> Rest<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Unreadable> {
        let end = self.at.checked_add(count).ok_or(TRUNCATED)?;
        let taken = self.all.get(self.at..end).ok_or(TRUNCATED)?;
        self.at = end;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u32, Unreadable> {
        let bytes = self.take(4)?.try_into().map_err(|_| TRUNCATED)?;
        Ok(u32::from_be_bytes(bytes))
    }

    fn short(&mut self) -> Result<usize, Unreadable> {
        let bytes = self.take(2)?.try_into().map_err(|_| TRUNCATED)?;
        Ok(usize::from(u16::from_be_bytes(bytes)))
    }

    /// The bytes before a delimiter, which is consumed.
    fn until(&mut self, delimiter: u8) -> Result<&'a [u8], Unreadable> {
        let rest = self.all.get(self.at..).unwrap_or_default();
        let length = rest.iter().position(|byte| *byte == delimiter).ok_or(TRUNCATED)?;
        let taken = self.take(length)?;
        self.at += 1;
        Ok(taken)
    }

    /// A number of git's variable-length encoding.
    fn varint(&mut self) -> Result<usize, Unreadable> {
        let mut value = 0usize;
        loop {
            let byte = self.take(1)?.first().copied().unwrap_or_default();
            value = value.checked_mul(128).ok_or(AMBIGUOUS)? + usize::from(byte & 127);
            if byte & 128 == 0 {
                return Ok(value);
            }
            value = value.checked_add(1).ok_or(AMBIGUOUS)?;
        }
    }
}

/// Reads an index whose ids have a length of `id_length` bytes.
pub(super) fn read(file: &[u8], id_length: usize) -> Result<Index, Unreadable> {
    let end = file.len().checked_sub(id_length).ok_or(TRUNCATED)?;
    let mut rest = Rest { all: file.get(..end).unwrap_or_default(), at: 0 };
    let mut index = Index::default();
    if rest.take(4)? != b"DIRC" {
        return Err("it is not an index");
    }
    let (version, count) = (rest.number()?, rest.number()?);
    if !(2..=4).contains(&version) {
        return Err("its version is unknown");
    }
    // The offset of each entry, and in version 4 whether it repeats nothing of the one before.
    let mut starts = HashMap::new();
    let mut last = Vec::new();
    for number in 0..count {
        let start = rest.at;
        let (entry, is_whole) = entry(&mut rest, version, id_length, &last)?;
        starts.insert(start, (number, is_whole));
        last.clone_from(&entry.path);
        if entry.mode == DIRECTORY {
            index.trees.insert(entry.path.strip_suffix(b"/").ok_or(AMBIGUOUS)?.to_vec(), entry.id);
        } else {
            index.entries.insert(entry);
        }
    }
    starts.insert(rest.at, (count, true));
    let entries_end = rest.at;
    while rest.at < end {
        let name = rest.take(4)?;
        let size = rest.number()? as usize;
        let content = rest.take(size)?;
        match name {
            b"TREE" => trees(&mut Rest { all: content, at: 0 }, id_length, &mut index.trees)?,
            b"EOIE" => {
                let offset = Rest { all: content, at: 0 }.number()?;
                if offset as usize != entries_end {
                    return Err(AMBIGUOUS);
                }
            }
            b"IEOT" => check_blocks(&mut Rest { all: content, at: 0 }, &starts, count)?,
            b"link" => return Err("it is a split index"),
            // The second is a sparse index, whose directories are entries.
            [b'A'..=b'Z', ..] | b"sdir" => {}
            _ => return Err("it has an unknown extension"),
        }
    }
    Ok(index)
}

/// Reads an entry, and whether its name repeats nothing of the last one.
fn entry(
    rest: &mut Rest<'_>,
    version: u32,
    id_length: usize,
    last: &[u8],
) -> Result<(GitEntry, bool), Unreadable> {
    const LENGTH: usize = 0xfff;
    const EXTENDED: usize = 0x4000;
    let start = rest.at;
    // Times, device and inode; then owner and size.
    rest.take(24)?;
    let mode = rest.number()?;
    rest.take(12)?;
    let id = rest.take(id_length)?.to_vec();
    let flags = rest.short()?;
    if flags & EXTENDED != 0 {
        rest.take(if version >= 3 { 2 } else { return Err(AMBIGUOUS) })?;
    }
    let (mut path, mut is_whole) = (Vec::new(), true);
    if version == 4 {
        let copied = last.len().checked_sub(rest.varint()?).ok_or(AMBIGUOUS)?;
        path.extend_from_slice(last.get(..copied).unwrap_or_default());
        is_whole = copied == 0;
        path.extend_from_slice(rest.until(0)?);
    } else {
        path.extend_from_slice(rest.until(0)?);
        // One to eight NUL bytes.
        let padded = (rest.at - 1 - start + 8) & !7;
        rest.at = start;
        rest.take(padded)?;
    }
    if flags & LENGTH != path.len().min(LENGTH) {
        return Err(AMBIGUOUS);
    }
    Ok((GitEntry { path, mode, id }, is_whole))
}

/// Reads the cached trees.
fn trees(
    rest: &mut Rest<'_>,
    id_length: usize,
    trees: &mut HashMap<Vec<u8>, ObjectId>,
) -> Result<(), Unreadable> {
    // The path of each open tree, and the number of its unread children.
    let mut open: Vec<(Vec<u8>, usize)> = Vec::new();
    while rest.at < rest.all.len() {
        let is_first = rest.at == 0;
        let name = rest.until(0)?;
        let number = |bytes: &[u8]| std::str::from_utf8(bytes).ok()?.parse::<i64>().ok();
        let entries = number(rest.until(b' ')?).ok_or(AMBIGUOUS)?;
        let children = number(rest.until(b'\n')?).ok_or(AMBIGUOUS)?;
        let mut path = match open.last_mut() {
            None if is_first && name.is_empty() => Vec::new(),
            Some((above, unread)) => {
                *unread = unread.checked_sub(1).ok_or(AMBIGUOUS)?;
                above.clone()
            }
            None => return Err(AMBIGUOUS),
        };
        path.extend_from_slice(if path.is_empty() { b"" } else { b"/" });
        path.extend_from_slice(name);
        if entries >= 0 {
            trees.insert(path.clone(), rest.take(id_length)?.to_vec());
        }
        open.push((path, usize::try_from(children).map_err(|_| AMBIGUOUS)?));
        while open.last().is_some_and(|(_, unread)| *unread == 0) {
            open.pop();
        }
        if open.len() > MAX_DEPTH {
            return Err("its trees nest deeper than 256 levels");
        }
    }
    Ok(())
}

/// Checks the blocks of entries that git reads by several threads.
fn check_blocks(
    rest: &mut Rest<'_>,
    starts: &HashMap<usize, (u32, bool)>,
    count: u32,
) -> Result<(), Unreadable> {
    rest.number()?;
    let mut next = 0u32;
    while rest.at < rest.all.len() {
        let (offset, entries) = (rest.number()? as usize, rest.number()?);
        if starts.get(&offset) != Some(&(next, true)) {
            return Err(AMBIGUOUS);
        }
        next = next.checked_add(entries).ok_or(AMBIGUOUS)?;
    }
    if next == count { Ok(()) } else { Err(AMBIGUOUS) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// An entry of version 2, with the length that its flags name.
    fn entry(name: &[u8], length: usize) -> Vec<u8> {
        let mut entry = vec![0; 24];
        entry.extend(0o100_644u32.to_be_bytes());
        entry.extend([0; 12]);
        entry.extend([7; 20]);
        entry.extend(u16::try_from(length).unwrap().to_be_bytes());
        entry.extend(name);
        let padded = (entry.len() + 8) & !7;
        entry.resize(padded, 0);
        entry
    }

    fn extension(name: &[u8], content: &[u8]) -> Vec<u8> {
        let size = u32::try_from(content.len()).unwrap();
        [name, &size.to_be_bytes(), content].concat()
    }

    fn file(entries: &[Vec<u8>], extensions: &[Vec<u8>]) -> Vec<u8> {
        let count = u32::try_from(entries.len()).unwrap();
        let head = [b"DIRC".as_slice(), &2u32.to_be_bytes(), &count.to_be_bytes()].concat();
        [head, entries.concat(), extensions.concat(), vec![0; 20]].concat()
    }

    fn numbers(numbers: &[u32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
    }

    #[test]
    fn an_index_is_read_in_one_way_or_not() {
        let two = [entry(b"a", 1), entry(b"b/c", 3)];
        let (first, second) = (12, 12 + two[0].len() as u32);
        let end = second + two[1].len() as u32;
        let tree = [b"\x002 1\n".as_slice(), &[1; 20], b"b\x001 0\n", &[2; 20]].concat();
        let rows: [(&str, Vec<u8>, Result<usize, Unreadable>); 18] = [
            ("no extension", file(&two, &[]), Ok(0)),
            ("cached trees", file(&two, &[extension(b"TREE", &tree)]), Ok(2)),
            ("invalid cached trees", file(&two, &[extension(b"TREE", b"\x00-1 1\nb\x00-1 0\n")]), Ok(0)),
            (
                "too many children",
                file(&two, &[extension(b"TREE", b"\x00-1 0\nb\x00-1 0\n")]),
                Err(AMBIGUOUS),
            ),
            (
                "a cached tree that is truncated",
                file(&two, &[extension(b"TREE", &tree[..9])]),
                Err(TRUNCATED),
            ),
            ("an optional extension", file(&two, &[extension(b"OPTN", b"x")]), Ok(0)),
            ("a sparse index", file(&two, &[extension(b"sdir", b"")]), Ok(0)),
            ("a split index", file(&two, &[extension(b"link", &[0; 20])]), Err("it is a split index")),
            ("another extension", file(&two, &[extension(b"xxxx", b"")]), Err("it has an unknown extension")),
            ("the end of the entries", file(&two, &[extension(b"EOIE", &numbers(&[end]))]), Ok(0)),
            ("another end", file(&two, &[extension(b"EOIE", &numbers(&[second]))]), Err(AMBIGUOUS)),
            ("blocks", file(&two, &[extension(b"IEOT", &numbers(&[1, first, 1, second, 1]))]), Ok(0)),
            (
                "a block inside an entry",
                file(&two, &[extension(b"IEOT", &numbers(&[1, first, 1, second + 8, 1]))]),
                Err(AMBIGUOUS),
            ),
            ("a missing block", file(&two, &[extension(b"IEOT", &numbers(&[1, first, 1]))]), Err(AMBIGUOUS)),
            ("a name that is longer", file(&[entry(b"a\0.envrc", 8)], &[]), Err(AMBIGUOUS)),
            ("a name that is shorter", file(&[entry(b"ab", 1)], &[]), Err(AMBIGUOUS)),
            ("a number of entries", file(&[two[0].clone(), vec![]], &[]), Err(TRUNCATED)),
            ("nothing", Vec::new(), Err(TRUNCATED)),
        ];
        for (name, file, expected) in rows {
            let read = read(&file, 20);
            assert_eq!(read.map(|index| index.trees.len()), expected, "{name}");
        }
        let index = read(&file(&two, &[extension(b"TREE", &tree)]), 20).unwrap();
        let paths: BTreeSet<_> = index.entries.iter().map(|entry| entry.path.as_slice()).collect();
        assert_eq!(paths, [b"a".as_slice(), b"b/c"].into());
        assert_eq!((&index.trees[&b""[..]], &index.trees[&b"b"[..]]), (&vec![1; 20], &vec![2; 20]));
    }

    #[test]
    fn any_bytes_are_read_or_rejected() {
        let tree = [b"\x002 0\n".as_slice(), &[1; 20]].concat();
        let whole = file(&[entry(b"a", 1), entry(b"b/c", 3)], &[extension(b"TREE", &tree)]);
        for length in 0..whole.len() {
            let _ = read(&whole[..length], 20);
            for byte in [0, 1, 4, 0x7f, 0x80, 0xff] {
                for version in [2, 3, 4] {
                    let mut changed = whole.clone();
                    (changed[7], changed[length]) = (version, byte);
                    let _ = read(&changed, 20);
                }
            }
        }
    }
}

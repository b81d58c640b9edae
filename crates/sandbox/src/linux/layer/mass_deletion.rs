//! Detects changes that delete more than a person would expect.
//!
//! Files of build directories do not count, and a moved file is not deleted. Ignored files do not count for everything
//! and for half: code can write `.gitignore`, and so can at most delete 1,000 files unnoticed, which undo restores.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use rustix::fd::BorrowedFd;
use rustix::fs::{Mode, OFlags, Stat};

use super::super::files::open_beneath;
use super::apply::{Engine, entries, name_of};
use super::changes::{Change, Kind};
use super::ignored::Ignored;
use super::unapplied::is_product;
use super::view::{LayerEntry, is_directory, is_regular, lstat, stat_of};
use crate::apply::MAX_DELETED;

/// The fewest files that count as everything.
const MIN_WHOLE: usize = 2;
/// The fewest files of a directory whose half counts.
const MIN_HALVED: usize = 10;
/// The maximum number of visited entries. Changes that delete more are held.
const MAX_VISITED: usize = 500_000;

/// The facts that a move preserves: the size and the time of the content, in seconds and nanoseconds.
type Content = (i64, i64, i64);

fn content(stat: &Stat) -> Content {
    (stat.st_size, stat.st_mtime, stat.st_mtime_nsec as i64)
}

impl Engine<'_> {
    /// Whether the changes delete all files, over half of at least 10, or more than 1,000.
    pub(super) fn deletes_much(&mut self, list: &[Change]) -> bool {
        let mut survey = Survey {
            host: self.host,
            upper: self.upper,
            ignored: Ignored::new(self.host),
            counts_ignored: true,
            visited: 0,
        };
        let Some((_, net)) = survey.deleted(list) else { return true };
        if net > MAX_DELETED {
            return true;
        }
        survey.counts_ignored = false;
        let Some((gross, net)) = survey.deleted(list).filter(|_| net >= MIN_WHOLE) else { return false };
        if net < MIN_WHOLE {
            return false;
        }
        // Above this number neither all files nor half of them are deleted.
        let enough = gross.max(2 * net) + 1;
        let all = survey.count(enough);
        all == gross || all >= MIN_HALVED && 2 * net > all
    }
}

struct Survey<'a> {
    host: BorrowedFd<'a>,
    upper: BorrowedFd<'a>,
    ignored: Ignored<'a>,
    /// Whether ignored files count.
    counts_ignored: bool,
    visited: usize,
}

impl Survey<'_> {
    /// The number of deleted files of the host, with and without moved ones. None if there are too many to visit.
    fn deleted(&mut self, list: &[Change]) -> Option<(usize, usize)> {
        let mut deleted = HashMap::new();
        self.visited = 0;
        for change in list {
            let covers = match change.kind {
                Kind::Deleted => false,
                Kind::Directory { opaque: true } => true,
                _ => continue,
            };
            self.visit(&change.path, &mut |survey, path, stat| {
                let is_covered =
                    covers && lstat(survey.upper, path).is_some_and(|kind| kind != LayerEntry::Whiteout);
                if !is_covered {
                    *deleted.entry(content(stat)).or_default() += 1;
                }
                true
            })?;
        }
        let gross: usize = deleted.values().sum();
        Some((gross, gross - self.moved(list, deleted)))
    }

    /// The number of deleted files that are new at another path.
    fn moved(&self, list: &[Change], mut rest: HashMap<Content, usize>) -> usize {
        let mut moved = 0;
        for change in list.iter().filter(|change| change.kind == Kind::File) {
            let is_new = || stat_of(self.host, &change.path).is_ok_and(|there| there.is_none());
            if let Some(number @ 1..) = rest.get_mut(&content(&change.stat))
                && is_new()
            {
                *number -= 1;
                moved += 1;
            }
        }
        moved
    }

    /// The number of files of the host directory, up to `enough`.
    fn count(&mut self, enough: usize) -> usize {
        let mut count = 0;
        let _ = self.visit(Path::new(""), &mut |_, _, _| {
            count += 1;
            count < enough
        });
        count
    }

    /// Calls `each` for every file beneath a path that counts, until it returns false. None if there are too many.
    fn visit(&mut self, path: &Path, each: &mut dyn FnMut(&Self, &Path, &Stat) -> bool) -> Option<()> {
        let mut waiting = vec![path.to_owned()];
        while let Some(path) = waiting.pop() {
            self.visited += 1;
            if self.visited > MAX_VISITED {
                return None;
            }
            let is_top = path.as_os_str().is_empty();
            if is_product(&path) || path.starts_with(".git") {
                continue;
            }
            let stat = if is_top { None } else { stat_of(self.host, &path).ok().flatten() };
            let is_inner = stat.as_ref().is_some_and(is_directory);
            if !is_top && !self.counts_ignored && self.ignored.holds(&path, is_inner) {
                continue;
            }
            if is_top || is_inner {
                waiting.extend(self.names(&path));
            } else if let Some(stat) = stat.filter(is_regular)
                && !each(self, &path, &stat)
            {
                return Some(());
            }
        }
        Some(())
    }

    fn names(&self, path: &Path) -> Vec<PathBuf> {
        let place = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let opened = open_beneath(self.host, place, flags, Mode::empty());
        opened.map_or_else(
            |_| Vec::new(),
            |directory| entries(&directory).iter().map(|name| path.join(name_of(name))).collect(),
        )
    }
}

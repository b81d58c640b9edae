//! The counts in a provider's record of usage.

use std::collections::BTreeMap;

use crate::fields::Members;

/// Reads counts, and remembers whether one of them could not be read: what an answer costs is then not known.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Whether a count is missing that must be there, or one is not a whole number from 0.
    pub(crate) incomplete: bool,
}

impl Counts {
    /// A count that must be there.
    pub(crate) fn needed(&mut self, record: &Members<'_>, name: &str) -> u64 {
        let count = self.optional(record, name);
        self.incomplete |= count.is_none();
        count.unwrap_or_default()
    }

    /// A count that may be absent or `null`.
    pub(crate) fn optional(&mut self, record: &Members<'_>, name: &str) -> Option<u64> {
        self.known(record, name, |record| record.read(name))
    }

    /// A part of the record that may be absent or `null`; then it has no members.
    pub(crate) fn part<'a>(&mut self, record: &Members<'a>, name: &str) -> Members<'a> {
        self.known(record, name, |record| record.read(name)).unwrap_or_default()
    }

    /// The parts of a list that may be absent or `null`.
    pub(crate) fn parts<'a>(&mut self, record: &Members<'a>, name: &str) -> Vec<Members<'a>> {
        self.known(record, name, |record| record.read(name)).unwrap_or_default()
    }

    /// How often hosted tools were used, by the name of each; a part that may be absent or `null`.
    pub(crate) fn uses(&mut self, record: &Members<'_>, name: &str) -> BTreeMap<String, u64> {
        let uses: Option<BTreeMap<String, Option<u64>>> =
            self.known(record, name, |record| record.read(name));
        let uses = uses.unwrap_or_default().into_iter();
        uses.filter_map(|(name, count)| Some((name, count.filter(|count| *count > 0)?))).collect()
    }

    fn known<'a, T>(
        &mut self,
        record: &Members<'a>,
        name: &str,
        read: impl FnOnce(&Members<'a>) -> Option<T>,
    ) -> Option<T> {
        let found = read(record);
        let is_there = record.get(name).is_some_and(|value| value.get() != "null");
        self.incomplete |= found.is_none() && is_there;
        found
    }
}

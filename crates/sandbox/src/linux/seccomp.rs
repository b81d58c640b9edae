//! Compiles the policy into a seccomp filter: a binary search over call numbers, so that 100 rules cost eight
//! comparisons.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use libc::sock_filter;

use super::child_steps::Step;
use super::launch::{self, Plan};
use super::policy::{Action, LAST_REVIEWED, MACHINE, POLICY, Rule, Test, When};
use super::system_calls::{self, Treatment};
use crate::Level;

#[cfg(target_arch = "x86_64")]
const MACHINE_NUMBER: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const MACHINE_NUMBER: u32 = 0xC000_00B7;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const MACHINE_NUMBER: u32 = 0;

const ALLOW: u32 = 0x7FFF_0000;
const KILL_PROCESS: u32 = 0x8000_0000;
/// The host sees the call first and ends the run.
const NOTIFY_HOST: u32 = 0x7FC0_0000;
const FAIL: u32 = 0x0005_0000;

/// The bit of x32 calls, which would bypass a filter that compares numbers.
const X32: u32 = 0x4000_0000;

const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_AT_LEAST: u16 = 0x35;
const JUMP_IF_BITS: u16 = 0x45;
const AND: u16 = 0x54;
const RETURN: u16 = 0x06;

const OFFSET_OF_NUMBER: u32 = 0;
const OFFSET_OF_MACHINE: u32 = 4;
const OFFSET_OF_ARGUMENTS: u32 = 16;

/// The facts that decide which rules apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Circumstances {
    /// The level.
    pub(super) level: Level,
    /// The run has its own process, message and network namespaces.
    pub(super) own_namespaces: bool,
    /// Landlock restricts signals, or no host process is visible.
    pub(super) scoped_signals: bool,
    /// The host sees a call that ends the run, and so knows its name.
    pub(super) tells: bool,
    /// The run has an egress proxy in its own network namespace.
    pub(super) has_egress: bool,
    /// A shown directory may contain sockets of the host that answer.
    pub(super) has_sockets: bool,
    /// Landlock cannot restrict truncation of the host's files.
    pub(super) truncates: bool,
    /// No cgroup limits the memory of the run.
    pub(super) watched_memory: bool,
}

const fn statement(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

const fn branch(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// The result of a search over call numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Return this value.
    Return(u32),
    /// Evaluate the rules of the call with this index.
    Rules(usize),
}

/// Whether the kernel can report calls to this process before they run. Probed once.
pub(super) fn can_tell() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let circumstances = Circumstances {
            level: Level::Maximum,
            own_namespaces: true,
            scoped_signals: true,
            tells: true,
            has_egress: false,
            has_sockets: false,
            truncates: false,
            watched_memory: false,
        };
        let steps = vec![Step::NoNewPrivileges, Step::SeccompNotify(filter(circumstances)), Step::Exit];
        let plan = Plan { namespaces: 0, cgroup: None, steps };
        launch::start(&plan).is_ok_and(|child| launch::first_letter(&child) == Some(b'N'))
    })
}

/// The filter for the circumstances.
///
/// Its length costs time: at each start the kernel checks, translates and evaluates it for every call number
/// (measured: 0.35 µs per instruction).
pub(super) fn filter(circumstances: Circumstances) -> Arc<[sock_filter]> {
    static CACHE: Mutex<BTreeMap<Circumstances, Arc<[sock_filter]>>> = Mutex::new(BTreeMap::new());
    let mut kept = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(kept.entry(circumstances).or_insert_with(|| compile(circumstances).into()))
}

impl Rule {
    /// Whether the rule is part of the filter.
    pub(super) fn applies(&self, circumstances: Circumstances) -> bool {
        self.since <= circumstances.level
            && match self.when {
                When::Always => true,
                When::SharedNamespaces => !circumstances.own_namespaces,
                When::UnscopedSignals => !circumstances.scoped_signals,
                When::NoEgress => !circumstances.has_egress,
                When::Egress => circumstances.has_egress,
                When::Sockets => circumstances.has_sockets,
                When::UnguardedTruncation => circumstances.truncates,
                When::WatchedMemory => circumstances.watched_memory,
            }
    }
}

fn compile(circumstances: Circumstances) -> Vec<sock_filter> {
    let mut calls: BTreeMap<u32, Vec<&Rule>> = BTreeMap::new();
    for rule in POLICY.iter().chain(MACHINE) {
        if rule.applies(circumstances) {
            calls.entry(rule.call as u32).or_default().push(rule);
        }
    }
    let calls: Vec<(u32, Vec<&Rule>)> = calls.into_iter().collect();
    // The numbers at which the result changes, ascending; neighbors with the same result form a segment.
    let mut segments = vec![(0u32, End::Return(ALLOW))];
    let mut change = |number: u32, end: End| match segments.last_mut() {
        Some(last) if last.1 == end => {}
        Some(last) if last.0 == number => last.1 = end,
        _ => segments.push((number, end)),
    };
    for (place, (number, rules)) in calls.iter().enumerate() {
        let end = match rules.iter().find(|rule| rule.test == Test::Any) {
            // A rule without condition decides, if all rules fail with the same error.
            Some(Rule { action: Action::Fail(error), .. }) if same_error(rules) => {
                End::Return(FAIL | *error as u32)
            }
            _ => End::Rules(place),
        };
        change(*number, end);
        change(*number + 1, End::Return(ALLOW));
    }
    change(LAST_REVIEWED + 1, End::Return(FAIL | libc::ENOSYS as u32));
    if circumstances.level == Level::Maximum {
        segments = allowlist(&calls, circumstances.tells);
    }
    segments.push((X32, End::Return(KILL_PROCESS)));

    let mut filter = vec![
        statement(LOAD, OFFSET_OF_MACHINE),
        branch(JUMP_IF_EQUAL, MACHINE_NUMBER, 1, 0),
        // Calls of another architecture, for example `int 0x80`, have other numbers.
        statement(RETURN, KILL_PROCESS),
        statement(LOAD, OFFSET_OF_NUMBER),
    ];
    // A conditional jump reaches 255 instructions, so the search is split, each part with its own results.
    let parts: Vec<&[(u32, End)]> = segments.chunks(64).collect();
    let bodies: Vec<Vec<sock_filter>> = parts.iter().map(|part| search(part, &calls)).collect();
    for (index, body) in bodies.iter().enumerate() {
        if let Some(next) = parts.get(index + 1).and_then(|part| part.first()) {
            filter.push(branch(JUMP_IF_AT_LEAST, next.0, 0, 1));
            filter.push(statement(JUMP, body.len() as u32));
        }
        filter.extend(body);
    }
    filter
}

/// The segments of level `maximum`: each call by its group, and the argument rules of allowed ones.
fn allowlist(calls: &[(u32, Vec<&Rule>)], tells: bool) -> Vec<(u32, End)> {
    let unknown = End::Return(FAIL | libc::ENOSYS as u32);
    let mut ends = vec![unknown; LAST_REVIEWED as usize + 1];
    for group in system_calls::groups() {
        for (number, _) in group.calls {
            let rules = calls.iter().position(|(call, _)| i64::from(*call) == *number);
            let end = match (group.treatment, rules) {
                (Treatment::Allow, Some(place)) => End::Rules(place),
                (Treatment::Allow, None) => End::Return(ALLOW),
                (Treatment::Answer(error), _) => End::Return(FAIL | error as u32),
                (Treatment::End, _) => End::Return(if tells { NOTIFY_HOST } else { KILL_PROCESS }),
            };
            if let Some(place) = ends.get_mut(*number as usize) {
                *place = end;
            }
        }
    }
    let mut segments: Vec<(u32, End)> = Vec::new();
    for (number, end) in (0u32..).zip(ends.into_iter().chain([unknown])) {
        if segments.last().is_none_or(|last| last.1 != end) {
            segments.push((number, end));
        }
    }
    segments
}

fn same_error(rules: &[&Rule]) -> bool {
    rules.windows(2).all(|pair| pair[0].action == pair[1].action)
}

/// The target of a comparison: another comparison or a result.
#[derive(Debug, Clone, Copy)]
enum Target {
    Node(usize),
    End(End),
}

/// A comparison: the first target for at least this number, else the second.
type Node = (u32, Target, Target);

/// Adds the comparisons of a binary search and returns its root.
fn build(segments: &[(u32, End)], nodes: &mut Vec<Node>) -> Target {
    match segments {
        [] => Target::End(End::Return(ALLOW)),
        [(_, end)] => Target::End(*end),
        _ => {
            let (lower, upper) = segments.split_at(segments.len() / 2);
            let place = nodes.len();
            let nothing = Target::End(End::Return(ALLOW));
            nodes.push((upper.first().map_or(0, |segment| segment.0), nothing, nothing));
            let no = build(lower, nodes);
            let yes = build(upper, nodes);
            if let Some(node) = nodes.get_mut(place) {
                (node.1, node.2) = (yes, no);
            }
            Target::Node(place)
        }
    }
}

/// A binary search over segments, followed by its results.
fn search(segments: &[(u32, End)], calls: &[(u32, Vec<&Rule>)]) -> Vec<sock_filter> {
    let mut nodes = Vec::new();
    build(segments, &mut nodes);
    let mut ends: Vec<(End, usize)> = Vec::new();
    let mut tail = Vec::new();
    for (_, end) in segments {
        if ends.iter().any(|(other, _)| other == end) {
            continue;
        }
        ends.push((*end, nodes.len() + tail.len()));
        match end {
            End::Return(value) => tail.push(statement(RETURN, *value)),
            End::Rules(place) => {
                for rule in calls.get(*place).map(|call| call.1.as_slice()).unwrap_or_default() {
                    test(rule, &mut tail);
                }
                tail.push(statement(RETURN, ALLOW));
            }
        }
    }
    let target = |way: Target| match way {
        Target::Node(place) => place,
        Target::End(end) => ends.iter().find(|(other, _)| *other == end).map_or(0, |(_, place)| *place),
    };
    let mut body: Vec<sock_filter> = nodes
        .iter()
        .enumerate()
        .map(|(place, (number, yes, no))| {
            // Targets are always ahead and in reach: the test compares all numbers.
            let distance =
                |way: Target| u8::try_from(target(way).saturating_sub(place + 1)).unwrap_or(u8::MAX);
            branch(JUMP_IF_AT_LEAST, *number, distance(*yes), distance(*no))
        })
        .collect();
    body.extend(tail);
    body
}

/// Returns the action if the test matches, else falls through. Each test loads its argument again.
fn test(rule: &Rule, filter: &mut Vec<sock_filter>) {
    let Action::Fail(error) = rule.action;
    let refusal = statement(RETURN, FAIL | error as u32);
    // Both architectures are little-endian: the lower half comes first.
    let load = |argument: u32| statement(LOAD, OFFSET_OF_ARGUMENTS + 8 * argument);
    match rule.test {
        Test::Any => filter.push(refusal),
        Test::HasBits(argument, bits) => {
            filter.extend([load(argument), branch(JUMP_IF_BITS, bits, 0, 1), refusal]);
        }
        Test::Is(argument, value) => {
            filter.extend([load(argument), branch(JUMP_IF_EQUAL, value, 0, 1), refusal]);
        }
        Test::MaskedIs(argument, mask, value) => {
            filter.extend([
                load(argument),
                statement(AND, mask),
                branch(JUMP_IF_EQUAL, value, 0, 1),
                refusal,
            ]);
        }
        Test::IsUnless { argument, value, other, mask, allowed } => {
            filter.extend([
                load(argument),
                branch(JUMP_IF_EQUAL, value, 0, 4),
                load(other),
                statement(AND, mask),
                branch(JUMP_IF_EQUAL, allowed, 1, 0),
                refusal,
            ]);
        }
        Test::Both((argument, value), (other, wanted)) => {
            filter.extend([
                load(argument),
                branch(JUMP_IF_EQUAL, value, 0, 3),
                load(other),
                branch(JUMP_IF_EQUAL, wanted, 0, 1),
                refusal,
            ]);
        }
        Test::Above(argument, most) => {
            filter.extend([
                statement(LOAD, OFFSET_OF_ARGUMENTS + 8 * argument + 4),
                branch(JUMP_IF_EQUAL, 0, 0, 2),
                load(argument),
                branch(JUMP_IF_AT_LEAST, most + 1, 0, 1),
                refusal,
            ]);
        }
        Test::IsNot(argument, values) => {
            filter.push(load(argument));
            for (index, value) in values.iter().enumerate() {
                filter.push(branch(JUMP_IF_EQUAL, *value, (values.len() - index) as u8, 0));
            }
            filter.push(refusal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interprets the instructions that the compiler emits, as the kernel would.
    fn evaluate(filter: &[sock_filter], machine: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let (mut at, mut accumulator) = (0usize, 0u32);
        loop {
            let line = filter[at];
            at += 1;
            let jump = |taken: bool| usize::from(if taken { line.jt } else { line.jf });
            match line.code {
                LOAD => {
                    accumulator = match line.k {
                        0 => number,
                        4 => machine,
                        offset => {
                            let place = offset as usize - 16;
                            (arguments[place / 8] >> (8 * (place % 8))) as u32
                        }
                    }
                }
                AND => accumulator &= line.k,
                JUMP => at += line.k as usize,
                JUMP_IF_EQUAL => at += jump(accumulator == line.k),
                JUMP_IF_AT_LEAST => at += jump(accumulator >= line.k),
                JUMP_IF_BITS => at += jump(accumulator & line.k != 0),
                RETURN => return line.k,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    fn every_circumstance() -> impl Iterator<Item = Circumstances> {
        [(true, true), (false, true), (false, false)]
            .into_iter()
            .flat_map(|(own_namespaces, scoped_signals)| {
                let levels = [
                    (Level::Minimal, false),
                    (Level::Standard, false),
                    (Level::Strict, false),
                    (Level::Maximum, false),
                    (Level::Maximum, true),
                ];
                levels.map(|(level, tells)| Circumstances {
                    level,
                    own_namespaces,
                    scoped_signals,
                    tells,
                    has_egress: false,
                    has_sockets: false,
                    truncates: false,
                    watched_memory: false,
                })
            })
            .flat_map(|circumstances| {
                let has_egress = Circumstances { has_egress: circumstances.own_namespaces, ..circumstances };
                let has_sockets = Circumstances { has_sockets: true, ..has_egress };
                [
                    circumstances,
                    has_egress,
                    has_sockets,
                    Circumstances { has_sockets: true, ..circumstances },
                    Circumstances { watched_memory: true, ..circumstances },
                    Circumstances { watched_memory: true, truncates: true, ..circumstances },
                ]
            })
    }

    /// Reads the table directly, as the test oracle.
    fn expected(circumstances: Circumstances, number: u32, arguments: [u64; 6]) -> u32 {
        if circumstances.level == Level::Maximum {
            match system_calls::of_number(number as i32).map(|(_, group)| group.treatment) {
                None => return FAIL | libc::ENOSYS as u32,
                Some(Treatment::Answer(error)) => return FAIL | error as u32,
                Some(Treatment::End) if circumstances.tells => return NOTIFY_HOST,
                Some(Treatment::End) => return KILL_PROCESS,
                Some(Treatment::Allow) => {}
            }
        }
        for rule in POLICY.iter().chain(MACHINE).filter(|rule| rule.call as u32 == number) {
            let applies = match rule.when {
                When::Always => true,
                When::SharedNamespaces => !circumstances.own_namespaces,
                When::UnscopedSignals => !circumstances.scoped_signals,
                When::NoEgress => !circumstances.has_egress,
                When::Egress => circumstances.has_egress,
                When::Sockets => circumstances.has_sockets,
                When::UnguardedTruncation => circumstances.truncates,
                When::WatchedMemory => circumstances.watched_memory,
            };
            let matches = match rule.test {
                Test::Any => true,
                Test::HasBits(argument, bits) => arguments[argument as usize] as u32 & bits != 0,
                Test::Is(argument, value) => arguments[argument as usize] as u32 == value,
                Test::MaskedIs(argument, mask, value) => arguments[argument as usize] as u32 & mask == value,
                Test::IsUnless { argument, value, other, mask, allowed } => {
                    arguments[argument as usize] as u32 == value
                        && arguments[other as usize] as u32 & mask != allowed
                }
                Test::IsNot(argument, values) => !values.contains(&(arguments[argument as usize] as u32)),
                Test::Both(one, other) => [one, other]
                    .iter()
                    .all(|(argument, value)| arguments[*argument as usize] as u32 == *value),
                Test::Above(argument, most) => arguments[argument as usize] > u64::from(most),
            };
            if applies && rule.since <= circumstances.level && matches {
                let Action::Fail(error) = rule.action;
                return FAIL | error as u32;
            }
        }
        if number > LAST_REVIEWED { FAIL | libc::ENOSYS as u32 } else { ALLOW }
    }

    #[test]
    fn the_filter_matches_the_table() {
        let values = [
            0u64,
            1,
            2,
            3,
            5,
            7,
            8,
            10,
            15,
            16,
            17,
            40,
            0x11,
            0x5412,
            0x541C,
            0x5423,
            0x8901,
            0x8902,
            0x1000_0000,
            0x40000,
            0xFFFF_FFFF,
            0x1_0000_0000,
            0x7F01_5412,
            0x1_0000_5412,
            0x1_0000,
            0x1_0001,
            1026,
            1031,
            0x80001,
            0x80002,
            0x200,
            0x201,
            0x8203,
        ];
        for circumstances in every_circumstance() {
            let filter = filter(circumstances);
            let most = match circumstances.level {
                Level::Maximum => 600,
                _ if circumstances.truncates => 360,
                _ => 340,
            };
            assert!(filter.len() < most, "a longer filter makes every start slower: {}", filter.len());
            for number in 0..600 {
                // Without a rule the arguments do not matter.
                let has_rule = POLICY.iter().chain(MACHINE).any(|rule| rule.call as u32 == number);
                let values = if has_rule { &values[..] } else { &values[..2] };
                for &first in values {
                    for &second in values {
                        let third = match libc::c_long::from(number) {
                            libc::SYS_socket => second * 3,
                            libc::SYS_setsockopt => first,
                            _ => 0,
                        };
                        let arguments = [first, second, third, 0, 0, 0];
                        assert_eq!(
                            evaluate(&filter, MACHINE_NUMBER, number, arguments),
                            expected(circumstances, number, arguments),
                            "call {number} {arguments:x?} {circumstances:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn other_machines_and_x32_are_killed() {
        for circumstances in every_circumstance() {
            let filter = filter(circumstances);
            assert_eq!(evaluate(&filter, 0x4000_0003, 1, [0; 6]), KILL_PROCESS);
            for number in [X32, X32 | 1, X32 | 512, u32::MAX] {
                assert_eq!(evaluate(&filter, MACHINE_NUMBER, number, [0; 6]), KILL_PROCESS);
            }
        }
    }
}

//! Turns the policy into a seccomp filter: a binary search over call numbers, so that a filter of a hundred rules
//! costs seven comparisons.

use std::collections::BTreeMap;

use libc::sock_filter;

use super::policy::{Action, MACHINE, NEWEST_REVIEWED, POLICY, Rule, Test, When};

#[cfg(target_arch = "x86_64")]
const MACHINE_NUMBER: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const MACHINE_NUMBER: u32 = 0xC000_00B7;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const MACHINE_NUMBER: u32 = 0;

const ALLOW: u32 = 0x7FFF_0000;
const KILL_PROCESS: u32 = 0x8000_0000;
const FAIL: u32 = 0x0005_0000;

/// Calls of the x32 interface have this bit; they would bypass a filter that compares numbers.
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

/// What decides which rules apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Circumstances {
    /// The run has process, message and network namespaces of its own.
    pub(super) own_namespaces: bool,
    /// Landlock limits signals, or no process of the host is visible.
    pub(super) scoped_signals: bool,
}

const fn statement(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

const fn branch(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// The filter for the circumstances.
pub(super) fn filter(circumstances: Circumstances) -> Vec<sock_filter> {
    let mut calls: BTreeMap<u32, Vec<&Rule>> = BTreeMap::new();
    for rule in POLICY.iter().chain(MACHINE) {
        let applies = match rule.when {
            When::Always => true,
            When::SharedNamespaces => !circumstances.own_namespaces,
            When::UnscopedSignals => !circumstances.scoped_signals,
        };
        if applies {
            calls.entry(rule.call as u32).or_default().push(rule);
        }
    }
    let calls: Vec<(u32, Vec<&Rule>)> = calls.into_iter().collect();
    let mut filter = vec![
        statement(LOAD, OFFSET_OF_MACHINE),
        branch(JUMP_IF_EQUAL, MACHINE_NUMBER, 1, 0),
        // Calls of another machine, for example `int 0x80`, have other numbers.
        statement(RETURN, KILL_PROCESS),
        statement(LOAD, OFFSET_OF_NUMBER),
        branch(JUMP_IF_AT_LEAST, X32, 0, 1),
        statement(RETURN, KILL_PROCESS),
        branch(JUMP_IF_AT_LEAST, NEWEST_REVIEWED + 1, 0, 1),
        statement(RETURN, FAIL | libc::ENOSYS as u32),
    ];
    search(&calls, &mut filter);
    filter
}

/// A binary search over sorted call numbers; each way ends in a return.
fn search(calls: &[(u32, Vec<&Rule>)], filter: &mut Vec<sock_filter>) {
    match calls {
        [] => filter.push(statement(RETURN, ALLOW)),
        [(number, rules)] => {
            filter.push(branch(JUMP_IF_EQUAL, *number, 1, 0));
            filter.push(statement(RETURN, ALLOW));
            for rule in rules {
                test(rule, filter);
            }
            filter.push(statement(RETURN, ALLOW));
        }
        _ => {
            let (lower, upper) = calls.split_at(calls.len() / 2);
            let mut left = Vec::new();
            search(lower, &mut left);
            let first = upper.first().map_or(0, |call| call.0);
            // The left side may be longer than a conditional jump reaches.
            filter.push(branch(JUMP_IF_AT_LEAST, first, 0, 1));
            filter.push(statement(JUMP, left.len() as u32));
            filter.extend(left);
            search(upper, filter);
        }
    }
}

/// Returns the action if the test holds, else falls through. The argument is loaded anew by every test.
fn test(rule: &Rule, filter: &mut Vec<sock_filter>) {
    let Action::Fail(error) = rule.action;
    let refusal = statement(RETURN, FAIL | error as u32);
    // Both machines are little-endian: the lower half comes first.
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

    /// What the kernel would do: the few instructions that the compiler above emits.
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
                        offset => arguments[(offset as usize - 16) / 8] as u32,
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
            .map(|(own_namespaces, scoped_signals)| Circumstances { own_namespaces, scoped_signals })
    }

    /// The table itself, read without the compiler: the oracle.
    fn expected(circumstances: Circumstances, number: u32, arguments: [u64; 6]) -> u32 {
        for rule in POLICY.iter().chain(MACHINE).filter(|rule| rule.call as u32 == number) {
            let applies = match rule.when {
                When::Always => true,
                When::SharedNamespaces => !circumstances.own_namespaces,
                When::UnscopedSignals => !circumstances.scoped_signals,
            };
            let matches = match rule.test {
                Test::Any => true,
                Test::HasBits(argument, bits) => arguments[argument as usize] as u32 & bits != 0,
                Test::Is(argument, value) => arguments[argument as usize] as u32 == value,
                Test::MaskedIs(argument, mask, value) => arguments[argument as usize] as u32 & mask == value,
                Test::IsNot(argument, values) => !values.contains(&(arguments[argument as usize] as u32)),
            };
            if applies && matches {
                let Action::Fail(error) = rule.action;
                return FAIL | error as u32;
            }
        }
        if number > NEWEST_REVIEWED { FAIL | libc::ENOSYS as u32 } else { ALLOW }
    }

    #[test]
    fn the_filter_does_what_the_table_says() {
        let values = [
            0u64,
            1,
            2,
            3,
            5,
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
            0x80001,
            0x80002,
        ];
        for circumstances in every_circumstance() {
            let filter = filter(circumstances);
            assert!(filter.len() < 4096, "the kernel takes at most 4,096 instructions");
            for number in 0..600 {
                for first in values {
                    for second in values {
                        let arguments = [first, second, 0, 0, 0, 0];
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

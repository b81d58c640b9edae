//! The system call policy as a seccomp profile for container runtimes (JSON).
//!
//! It is an allowlist generated from the same table. It blocks what the table blocks, unknown calls and calls
//! newer than the review.

use serde_json::{Value, json};

use super::policy::{Action, MACHINE, POLICY, Rule, Test};
use super::seccomp::Circumstances;
use super::system_calls::{self, Treatment};
use crate::Level;

#[cfg(target_arch = "x86_64")]
const MACHINE_NAME: &str = "SCMP_ARCH_X86_64";
#[cfg(not(target_arch = "x86_64"))]
const MACHINE_NAME: &str = "SCMP_ARCH_AARCH64";

/// The values of an argument that equal `value` in the bits of `mask`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    mask: u32,
    value: u32,
}

/// All values.
const EVERYTHING: Block = Block { mask: 0, value: 0 };

/// Whether a rule matches all values of a block, none, or some.
fn concerns(test: Test, block: Block) -> Option<bool> {
    let is_single = block.mask == u32::MAX;
    match test {
        // The last two are for runs without a memory cgroup, which containers have.
        Test::Any | Test::Both(..) | Test::Above(..) => Some(true),
        Test::HasBits(_, bits) => {
            if block.value & bits != 0 {
                Some(true)
            } else if bits & !block.mask == 0 {
                Some(false)
            } else {
                None
            }
        }
        Test::Is(_, wanted) => {
            if wanted & block.mask == block.value {
                is_single.then_some(true)
            } else {
                Some(false)
            }
        }
        Test::IsNot(_, values) => {
            if values.iter().all(|value| value & block.mask != block.value) {
                Some(true)
            } else {
                is_single.then_some(false)
            }
        }
        // Blocks more than the rule: profiles cannot block by two arguments.
        Test::IsUnless { value, .. } => concerns(Test::Is(0, value), block),
        Test::MaskedIs(_, mask, wanted) => {
            if (wanted ^ block.value) & mask & block.mask != 0 {
                Some(false)
            } else if mask & !block.mask == 0 {
                Some(true)
            } else {
                None
            }
        }
    }
}

fn argument(test: Test) -> Option<u32> {
    match test {
        Test::Any => None,
        Test::HasBits(argument, _)
        | Test::Is(argument, _)
        | Test::IsNot(argument, _)
        | Test::IsUnless { argument, .. }
        | Test::Both((argument, _), _)
        | Test::Above(argument, _)
        | Test::MaskedIs(argument, ..) => Some(argument),
    }
}

/// Splits the values of an argument into blocks with an error, or allowed ones (none).
fn split(rules: &[&Rule], block: Block, blocks: &mut Vec<(Block, Option<i32>)>) {
    let mut undecided = None;
    for rule in rules {
        match concerns(rule.test, block) {
            Some(true) => {
                if undecided.is_none() {
                    let Action::Fail(error) = rule.action;
                    blocks.push((block, Some(error)));
                    return;
                }
            }
            Some(false) => {}
            None => undecided = Some(rule.test),
        }
    }
    let Some(test) = undecided else {
        blocks.push((block, None));
        return;
    };
    // The highest undecided bit that the rule tests.
    let relevant = match test {
        Test::HasBits(_, bits) => bits,
        Test::MaskedIs(_, mask, _) => mask,
        _ => u32::MAX,
    };
    let bit = 1u32 << (31 - (relevant & !block.mask).leading_zeros().min(31));
    let mask = block.mask | bit;
    split(rules, Block { mask, value: block.value }, blocks);
    split(rules, Block { mask, value: block.value | bit }, blocks);
}

/// Splits the values of all arguments into blocks and keeps those that no rule blocks.
fn split_jointly(rules: &[&Rule], blocks: [Block; 6], allowed: &mut Vec<[Block; 6]>) {
    let of = |argument: u32| blocks.get(argument as usize).copied().unwrap_or(EVERYTHING);
    // The next argument to split, and its relevant bits.
    let mut next = None;
    for rule in rules {
        let open = match rule.test {
            Test::IsUnless { argument, value, other, mask, allowed } => {
                let is = concerns(Test::Is(0, value), of(argument));
                let unless = concerns(Test::MaskedIs(0, mask, allowed), of(other));
                match (is, unless) {
                    (Some(false), _) | (_, Some(true)) => continue,
                    (Some(true), Some(false)) => return,
                    (None, _) => (argument, u32::MAX),
                    (Some(true), None) => (other, mask),
                }
            }
            test => match concerns(test, argument(test).map_or(EVERYTHING, of)) {
                Some(true) => return,
                Some(false) => continue,
                None => (argument(test).unwrap_or_default(), u32::MAX),
            },
        };
        // The lowest first, so that the lines form a tree.
        next = next.into_iter().chain([open]).min_by_key(|(argument, _)| *argument);
    }
    let Some((argument, relevant)) = next else {
        allowed.push(blocks);
        return;
    };
    let block = of(argument);
    let bit = 1u32 << (31 - (relevant & !block.mask).leading_zeros().min(31));
    for value in [block.value, block.value | bit] {
        let mut finer = blocks;
        finer[argument as usize] = Block { mask: block.mask | bit, value };
        split_jointly(rules, finer, allowed);
    }
}

/// The conditions of a profile line.
fn conditions(blocks: &[(usize, Block)]) -> Value {
    let condition = |(index, block): &(usize, Block)| json!({ "index": index, "value": block.mask, "valueTwo": block.value, "op": "SCMP_CMP_MASKED_EQ" });
    blocks.iter().map(condition).collect()
}

/// The circumstances of a container: its own namespaces, with or without egress.
fn circumstances(level: Level, has_egress: bool) -> Circumstances {
    Circumstances {
        has_sockets: false,
        level,
        own_namespaces: true,
        scoped_signals: true,
        tells: false,
        has_egress,
        truncates: false,
        watched_memory: false,
    }
}

/// The profile of a level, for a container with or without egress. At level `maximum`, calls that no program
/// needs end the program.
pub(crate) fn profile(level: Level, has_egress: bool) -> Value {
    let circumstances = circumstances(level, has_egress);
    let rules: Vec<&Rule> = POLICY.iter().chain(MACHINE).filter(|rule| rule.applies(circumstances)).collect();
    let mut allowed = Vec::new();
    let mut lines: Vec<Value> = Vec::new();
    for group in system_calls::groups() {
        for (number, name) in group.calls {
            let name = name.strip_prefix("SYS_").unwrap_or(name);
            let fail = |error: i32| json!({ "names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": error });
            if level == Level::Maximum {
                match group.treatment {
                    Treatment::Allow => {}
                    Treatment::Answer(error) => {
                        lines.push(fail(error));
                        continue;
                    }
                    Treatment::End => {
                        lines.push(json!({ "names": [name], "action": "SCMP_ACT_KILL_PROCESS" }));
                        continue;
                    }
                }
            }
            let of_call: Vec<&Rule> = rules.iter().copied().filter(|rule| rule.call == *number).collect();
            if of_call.is_empty() {
                allowed.push(name);
                continue;
            }
            if let Some(rule) = of_call.iter().find(|rule| rule.test == Test::Any) {
                let Action::Fail(error) = rule.action;
                lines.push(fail(error));
                continue;
            }
            let index = of_call.iter().find_map(|rule| argument(rule.test)).unwrap_or_default();
            let mut blocks = Vec::new();
            if of_call.iter().all(|rule| argument(rule.test) == Some(index)) {
                split(&of_call, EVERYTHING, &mut blocks);
            } else {
                // Calls blocked by several arguments together get the profile's default error.
                let mut joint = Vec::new();
                split_jointly(&of_call, [EVERYTHING; 6], &mut joint);
                for blocks in joint {
                    let mut cut: Vec<(usize, Block)> = blocks.into_iter().enumerate().collect();
                    cut.retain(|(_, block)| *block != EVERYTHING);
                    let args = conditions(&cut);
                    lines.push(json!({ "names": [name], "action": "SCMP_ACT_ALLOW", "args": args }));
                }
            }
            for (block, error) in blocks {
                let mut line = match error {
                    Some(error) => fail(error),
                    None => json!({ "names": [name], "action": "SCMP_ACT_ALLOW" }),
                };
                line["args"] = conditions(&[(index as usize, block)]);
                lines.push(line);
            }
        }
    }
    lines.push(json!({ "names": allowed, "action": "SCMP_ACT_ALLOW" }));
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "architectures": [MACHINE_NAME],
        "syscalls": lines,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line: the action, the error, and per argument number the masks and values.
    type Line = (String, u64, Vec<(usize, u64, u64)>);

    /// The lines of a profile by call name, and the default action.
    struct Read {
        default: String,
        lines: std::collections::HashMap<String, Vec<Line>>,
    }

    fn read(profile: &Value) -> Read {
        let mut lines = std::collections::HashMap::<String, Vec<Line>>::new();
        for line in profile["syscalls"].as_array().unwrap() {
            let arguments: Vec<_> = line["args"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|argument| {
                    let number = |name: &str| argument[name].as_u64().unwrap();
                    assert_eq!(argument["op"], "SCMP_CMP_MASKED_EQ");
                    (number("index") as usize, number("value"), number("valueTwo"))
                })
                .collect();
            let action = line["action"].as_str().unwrap();
            for name in line["names"].as_array().unwrap() {
                let error = line["errnoRet"].as_u64().unwrap_or_default();
                let place = lines.entry(name.as_str().unwrap().to_owned()).or_default();
                place.push((action.to_owned(), error, arguments.clone()));
            }
        }
        Read { default: profile["defaultAction"].as_str().unwrap().to_owned(), lines }
    }

    /// Evaluates a profile as a runtime does.
    fn evaluate(profile: &Read, name: &str, arguments: [u32; 6]) -> (String, u64) {
        for (action, error, conditions) in profile.lines.get(name).into_iter().flatten() {
            let holds =
                conditions.iter().all(|(index, mask, value)| u64::from(arguments[*index]) & mask == *value);
            if holds {
                return (action.clone(), *error);
            }
        }
        (profile.default.clone(), 1)
    }

    /// Reads the tables directly, as the test oracle.
    fn expected(circumstances: Circumstances, number: libc::c_long, arguments: [u32; 6]) -> (String, u64) {
        let level = circumstances.level;
        let fail = |error: i32| ("SCMP_ACT_ERRNO".to_owned(), error as u64);
        if level == Level::Maximum {
            match system_calls::of_number(number as i32).unwrap().1.treatment {
                Treatment::Allow => {}
                Treatment::Answer(error) => return fail(error),
                Treatment::End => return ("SCMP_ACT_KILL_PROCESS".into(), 0),
            }
        }
        let rules = POLICY.iter().chain(MACHINE);
        let applies = |rule: &Rule| rule.call == number && rule.applies(circumstances);
        // With egress the socket rules use several arguments and share one error.
        let is_joint = circumstances.has_egress && number == libc::SYS_socket;
        for rule in rules.filter(|rule| applies(rule)) {
            let refused = match rule.test {
                Test::Any => true,
                Test::HasBits(argument, bits) => arguments[argument as usize] & bits != 0,
                Test::IsUnless { argument, value, other, mask, allowed } if is_joint => {
                    arguments[argument as usize] == value && arguments[other as usize] & mask != allowed
                }
                Test::Is(argument, value) | Test::IsUnless { argument, value, .. } => {
                    arguments[argument as usize] == value
                }
                Test::IsNot(argument, values) => !values.contains(&arguments[argument as usize]),
                Test::MaskedIs(argument, mask, value) => arguments[argument as usize] & mask == value,
                Test::Both(..) | Test::Above(..) => panic!("no container has this rule: {rule:?}"),
            };
            if refused {
                let Action::Fail(error) = rule.action;
                return fail(if is_joint { libc::EPERM } else { error });
            }
        }
        ("SCMP_ACT_ALLOW".into(), 0)
    }

    #[test]
    fn the_profile_matches_the_tables() {
        let values = [
            0u32,
            1,
            2,
            16,
            17,
            40,
            0x5411,
            0x5412,
            0x5413,
            0x541C,
            0x5423,
            0x20000,
            0x1000_0000,
            0x4000_0000,
            0x7E02_0000,
            0x8000_0000,
            u32::MAX,
            u32::MAX - 1,
        ];
        for (level, has_egress) in
            [(Level::Strict, false), (Level::Maximum, false), (Level::Strict, true), (Level::Maximum, true)]
        {
            let read = read(&profile(level, has_egress));
            for (number, name) in system_calls::groups().flat_map(|group| group.calls) {
                let thirds: &[u32] =
                    if *number == libc::SYS_socket { &[0, 1, 6, 17, 132, 262] } else { &[0] };
                for (first, second) in values.iter().flat_map(|first| values.map(|second| (*first, second))) {
                    for third in thirds {
                        let arguments = [first, second, *third, 0, 0, 0];
                        assert_eq!(
                            evaluate(&read, name.strip_prefix("SYS_").unwrap(), arguments),
                            expected(circumstances(level, has_egress), *number, arguments),
                            "{name} {arguments:x?}"
                        );
                    }
                }
            }
            assert_eq!(evaluate(&read, "a_call_of_the_future", [0; 6]).0, "SCMP_ACT_ERRNO");
        }
        for has_egress in [false, true] {
            let size = profile(Level::Strict, has_egress).to_string().len();
            assert!(size < 60_000, "it travels with every container: {size}");
        }
    }
}

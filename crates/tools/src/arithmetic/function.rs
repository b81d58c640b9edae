//! The functions by name.

use super::number::{Fault, Number, Outcome, Ratio, greatest_common_divisor};

/// A function and its number of arguments.
pub(super) struct Function {
    pub(super) name: &'static str,
    pub(super) min: usize,
    pub(super) max: usize,
    pub(super) run: fn(&[Number]) -> Outcome,
}

/// Maximum number of arguments.
pub(super) const MAX_ARGUMENTS: usize = 1024;
/// The largest argument whose factorial fits a double.
const MAX_FACTORIAL: i128 = 170;

const fn one(name: &'static str, run: fn(&[Number]) -> Outcome) -> Function {
    Function { name, min: 1, max: 1, run }
}

const fn two(name: &'static str, run: fn(&[Number]) -> Outcome) -> Function {
    Function { name, min: 2, max: 2, run }
}

const fn many(name: &'static str, run: fn(&[Number]) -> Outcome) -> Function {
    Function { name, min: 1, max: MAX_ARGUMENTS, run }
}

pub(super) const FUNCTIONS: [Function; 37] = [
    one("abs", |x| Ok(if x[0].to_float() < 0.0 { x[0].negate() } else { x[0] })),
    one("sign", |x| Ok(Number::whole(x[0].compare(Number::whole(0)) as i128))),
    one("sqrt", |x| square_root(x[0])),
    one("cbrt", |x| Number::float(x[0].to_float().cbrt())),
    one("exp", |x| Number::float(x[0].to_float().exp())),
    one("ln", |x| logarithm(x[0], f64::ln)),
    one("log2", |x| logarithm(x[0], f64::log2)),
    one("log10", |x| logarithm(x[0], f64::log10)),
    Function { name: "log", min: 1, max: 2, run: log },
    one("sin", |x| Number::float(x[0].to_float().sin())),
    one("cos", |x| Number::float(x[0].to_float().cos())),
    one("tan", |x| Number::float(x[0].to_float().tan())),
    one("asin", |x| arc(x[0], f64::asin)),
    one("acos", |x| arc(x[0], f64::acos)),
    one("atan", |x| Number::float(x[0].to_float().atan())),
    two("atan2", |x| Number::float(x[0].to_float().atan2(x[1].to_float()))),
    one("sinh", |x| Number::float(x[0].to_float().sinh())),
    one("cosh", |x| Number::float(x[0].to_float().cosh())),
    one("tanh", |x| Number::float(x[0].to_float().tanh())),
    one("degrees", |x| Number::float(x[0].to_float().to_degrees())),
    one("radians", |x| Number::float(x[0].to_float().to_radians())),
    one("floor", |x| to_whole(x[0], Ratio::floor, f64::floor)),
    one("ceil", |x| to_whole(x[0], |ratio| -Ratio { top: -ratio.top, ..ratio }.floor(), f64::ceil)),
    one("trunc", |x| to_whole(x[0], |ratio| ratio.top / ratio.bottom, f64::trunc)),
    Function { name: "round", min: 1, max: 2, run: round },
    many("min", |x| Ok(best(x, std::cmp::Ordering::Less))),
    many("max", |x| Ok(best(x, std::cmp::Ordering::Greater))),
    many("sum", sum),
    many("mean", |x| sum(x)?.divide(Number::whole(x.len() as i128))),
    many("median", median),
    many("hypot", hypotenuse),
    many("gcd", |x| {
        whole_numbers("gcd", x)?.try_fold(0, |a, b| Ok(greatest_common_divisor(a, b))).map(Number::whole)
    }),
    many("lcm", least_common_multiple),
    one("factorial", |x| factorial(x[0])),
    two("comb", |x| combinations(x[0], x[1])),
    two("pow", |x| x[0].power(x[1])),
    two("mod", |x| x[0].modulo(x[1])),
];

fn domain(reason: impl Into<String>) -> Fault {
    Fault::Domain(reason.into())
}

fn square_root(number: Number) -> Outcome {
    if number.to_float() < 0.0 {
        return Err(domain("the square root of a negative number is not a real number"));
    }
    if let Number::Exact(ratio) = number {
        let (top, bottom) = (ratio.top.isqrt(), ratio.bottom.isqrt());
        if top * top == ratio.top && bottom * bottom == ratio.bottom {
            return Ok(Number::Exact(Ratio { top, bottom }));
        }
    }
    Number::float(number.to_float().sqrt())
}

fn logarithm(number: Number, run: fn(f64) -> f64) -> Outcome {
    if number.to_float() <= 0.0 {
        return Err(domain("the logarithm needs a number above 0"));
    }
    Number::float(run(number.to_float()))
}

fn log(arguments: &[Number]) -> Outcome {
    let Some(base) = arguments.get(1) else { return logarithm(arguments[0], f64::ln) };
    match base.to_float() {
        2.0 => logarithm(arguments[0], f64::log2),
        10.0 => logarithm(arguments[0], f64::log10),
        1.0 => Err(domain("the base of a logarithm cannot be 1")),
        _ => logarithm(arguments[0], f64::ln)?.divide(logarithm(*base, f64::ln)?),
    }
}

fn arc(number: Number, run: fn(f64) -> f64) -> Outcome {
    if number.to_float().abs() > 1.0 {
        return Err(domain("asin and acos need a number from -1 to 1"));
    }
    Number::float(run(number.to_float()))
}

fn to_whole(number: Number, exact: fn(Ratio) -> i128, float: fn(f64) -> f64) -> Outcome {
    match number {
        Number::Exact(ratio) => Ok(Number::whole(exact(ratio))),
        Number::Float(value) => Number::float(float(value)),
    }
}

/// Rounds to a number of digits after the point; halves go to the even digit.
fn round(arguments: &[Number]) -> Outcome {
    let digits = match arguments.get(1) {
        None => 0,
        Some(digits) => digits
            .as_whole()
            .filter(|digits| (-300..=300).contains(digits))
            .ok_or_else(|| domain("round needs an integer number of digits from -300 to 300"))?,
    };
    let scale = Number::whole(10).power(Number::whole(digits))?;
    let half_even = |ratio: Ratio| {
        let floor = ratio.floor();
        // Twice the distance to the floor, against 1.
        let rest = ratio.top.rem_euclid(ratio.bottom);
        let up =
            match rest.checked_mul(2).map_or(std::cmp::Ordering::Greater, |twice| twice.cmp(&ratio.bottom)) {
                std::cmp::Ordering::Less => false,
                std::cmp::Ordering::Equal => floor % 2 != 0,
                std::cmp::Ordering::Greater => true,
            };
        floor + i128::from(up)
    };
    to_whole(arguments[0].multiply(scale)?, half_even, f64::round_ties_even)?.divide(scale)
}

fn best(numbers: &[Number], order: std::cmp::Ordering) -> Number {
    let better = |best: Number, next: &Number| if next.compare(best) == order { *next } else { best };
    numbers[1..].iter().fold(numbers[0], better)
}

fn sum(numbers: &[Number]) -> Outcome {
    numbers.iter().try_fold(Number::whole(0), |total, number| total.add(*number))
}

fn median(numbers: &[Number]) -> Outcome {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(|left, right| left.compare(*right));
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        return Ok(sorted[middle]);
    }
    sorted[middle - 1].add(sorted[middle])?.divide(Number::whole(2))
}

fn hypotenuse(numbers: &[Number]) -> Outcome {
    let squares = numbers.iter().try_fold(Number::whole(0), |total, side| total.add(side.multiply(*side)?));
    match squares {
        Ok(total @ Number::Exact(_)) => square_root(total),
        _ => Number::float(numbers.iter().fold(0.0, |length: f64, side| length.hypot(side.to_float()))),
    }
}

/// The arguments as integers.
fn whole_numbers(
    name: &'static str,
    numbers: &[Number],
) -> Result<impl Iterator<Item = i128> + use<>, Fault> {
    let whole: Option<Vec<i128>> = numbers.iter().map(|number| number.as_whole()).collect();
    whole.map(Vec::into_iter).ok_or_else(|| domain(format!("{name} needs integers of at most 38 digits")))
}

fn least_common_multiple(numbers: &[Number]) -> Outcome {
    let multiple = |a: i128, b: i128| {
        if a == 0 || b == 0 {
            return Ok(0);
        }
        (a / greatest_common_divisor(a, b))
            .checked_mul(b)
            .and_then(i128::checked_abs)
            .ok_or_else(|| Fault::TooLarge("the least common multiple has more than 38 digits".into()))
    };
    whole_numbers("lcm", numbers)?.try_fold(1, multiple).map(Number::whole)
}

fn factorial(number: Number) -> Outcome {
    let number = number.as_whole().filter(|whole| *whole >= 0);
    let number = number.ok_or_else(|| domain("factorial needs an integer of at least 0"))?;
    if number > MAX_FACTORIAL {
        return Err(Fault::TooLarge(format!("the factorial of {number} is larger than 1.8e308")));
    }
    (2..=number).try_fold(Number::whole(1), |product, factor| product.multiply(Number::whole(factor)))
}

fn combinations(from: Number, take: Number) -> Outcome {
    let (Some(from), Some(take)) = (from.as_whole().filter(|n| *n >= 0), take.as_whole().filter(|k| *k >= 0))
    else {
        return Err(domain("comb needs two integers of at least 0"));
    };
    if take > from {
        return Ok(Number::whole(0));
    }
    // Each step at least doubles the product, which bounds the number of steps.
    (1..=take.min(from - take)).try_fold(Number::whole(1), |product, step| {
        product.multiply(Number::whole(from - step + 1))?.divide(Number::whole(step))
    })
}

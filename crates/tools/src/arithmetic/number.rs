//! Numbers: exact fractions while they fit into 128 bits, else 64-bit floating point.

use super::Calculated;

/// The reason why an operation failed. The caller adds the position.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fault {
    /// The result is undefined or not a real number.
    Domain(String),
    /// The result is too large.
    TooLarge(String),
}

pub(super) type Outcome = Result<Number, Fault>;

/// An exact fraction in lowest terms; `bottom` is positive, and neither is `i128::MIN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ratio {
    pub(super) top: i128,
    pub(super) bottom: i128,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Exact(Ratio),
    /// Always finite.
    Float(f64),
}

pub(super) fn greatest_common_divisor(mut a: i128, mut b: i128) -> i128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.abs()
}

fn domain<T>(reason: &str) -> Result<T, Fault> {
    Err(Fault::Domain(reason.into()))
}

impl Ratio {
    /// `None` if the fraction does not fit, or the denominator is zero.
    fn new(top: i128, bottom: i128) -> Option<Self> {
        if bottom == 0 || top == i128::MIN || bottom == i128::MIN {
            return None;
        }
        let divisor = greatest_common_divisor(top, bottom).max(1) * bottom.signum();
        Some(Self { top: top / divisor, bottom: bottom / divisor })
    }

    fn checked_add(self, other: Self) -> Option<Self> {
        let divisor = greatest_common_divisor(self.bottom, other.bottom);
        let left = self.top.checked_mul(other.bottom / divisor)?;
        let right = other.top.checked_mul(self.bottom / divisor)?;
        Self::new(left.checked_add(right)?, self.bottom.checked_mul(other.bottom / divisor)?)
    }

    fn checked_mul(self, other: Self) -> Option<Self> {
        // Cancelling first keeps the products small.
        let left = Self::new(self.top, other.bottom)?;
        let right = Self::new(other.top, self.bottom)?;
        Self::new(left.top.checked_mul(right.top)?, left.bottom.checked_mul(right.bottom)?)
    }

    fn inverse(self) -> Option<Self> {
        Self::new(self.bottom, self.top)
    }

    fn checked_pow(self, exponent: i128) -> Option<Self> {
        let mut base = if exponent < 0 { self.inverse()? } else { self };
        let mut left = exponent.unsigned_abs();
        let mut result = Self { top: 1, bottom: 1 };
        loop {
            if left & 1 == 1 {
                result = result.checked_mul(base)?;
            }
            left >>= 1;
            if left == 0 {
                return Some(result);
            }
            base = base.checked_mul(base)?;
        }
    }

    pub(super) fn floor(self) -> i128 {
        self.top.div_euclid(self.bottom)
    }

    /// The decimal digits, if finite and within 128 bits.
    fn decimal(self) -> Option<String> {
        let (mut rest, mut twos, mut fives) = (self.bottom, 0_u32, 0_u32);
        while rest % 2 == 0 {
            rest /= 2;
            twos += 1;
        }
        while rest % 5 == 0 {
            rest /= 5;
            fives += 1;
        }
        if rest != 1 {
            return None;
        }
        let places = twos.max(fives);
        let scaled = self.top.checked_mul(10_i128.checked_pow(places)? / self.bottom)?;
        if places == 0 {
            return Some(scaled.to_string());
        }
        let digits = format!("{:0>width$}", scaled.unsigned_abs(), width = places as usize + 1);
        let (whole, fraction) = digits.split_at(digits.len() - places as usize);
        Some(format!("{}{whole}.{fraction}", if scaled < 0 { "-" } else { "" }))
    }

    fn to_float(self) -> f64 {
        // Parsing the digits gives the nearest double; a quotient of rounded numbers may differ.
        self.decimal()
            .and_then(|digits| digits.parse().ok())
            .unwrap_or_else(|| self.top as f64 / self.bottom as f64)
    }
}

impl Number {
    pub(super) const fn whole(value: i128) -> Self {
        Self::Exact(Ratio { top: value, bottom: 1 })
    }

    /// A finite floating point result.
    pub(super) fn float(value: f64) -> Outcome {
        if value.is_nan() {
            return domain("the result is not a real number");
        }
        if value.is_infinite() {
            return Err(Fault::TooLarge("the result is larger than 1.8e308".into()));
        }
        Ok(Self::Float(value))
    }

    /// Parses digits such as `12`, `0.5`, `.5`, `1e3`; `None` for other text.
    pub(super) fn from_digits(text: &str) -> Option<Outcome> {
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, power_of_ten(exponent)?),
            None => (text, 0),
        };
        let (negative, mantissa) = mantissa.strip_prefix('-').map_or((false, mantissa), |rest| (true, rest));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{whole}{fraction}");
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let exact = || {
            let top: i128 = digits.parse().ok()?;
            let top = if negative { -top } else { top };
            let places = i64::try_from(fraction.len()).ok()? - exponent;
            let scale = 10_i128.checked_pow(u32::try_from(places.unsigned_abs()).ok()?);
            match (top, places > 0) {
                (0, _) => Ratio::new(0, 1),
                (top, true) => Ratio::new(top, scale?),
                (top, false) => Ratio::new(top.checked_mul(scale?)?, 1),
            }
        };
        match exact() {
            Some(ratio) => Some(Ok(Self::Exact(ratio))),
            None => Some(
                Self::float(format!("{mantissa}e{exponent}").parse::<f64>().ok()?)
                    .map(|number| if negative { number.negate() } else { number }),
            ),
        }
    }

    pub(super) fn from_json(number: &serde_json::Number) -> Option<Self> {
        match (number.as_i128(), number.as_f64()) {
            (Some(whole), _) => Some(Self::whole(whole)),
            // The shortest digits of the double are those that the caller wrote.
            (None, Some(float)) => Self::from_digits(&format!("{float:e}"))?.ok(),
            (None, None) => None,
        }
    }

    pub(super) fn to_float(self) -> f64 {
        match self {
            Self::Exact(ratio) => ratio.to_float(),
            Self::Float(value) => value,
        }
    }

    /// The value, if it is an exact integer.
    pub(super) fn as_whole(self) -> Option<i128> {
        match self {
            Self::Exact(Ratio { top, bottom: 1 }) => Some(top),
            _ => None,
        }
    }

    pub(super) fn is_zero(self) -> bool {
        self.to_float() == 0.0
    }

    /// The exact result of an operation if possible, else the floating point result.
    fn either(
        self,
        other: Self,
        exact: impl FnOnce(Ratio, Ratio) -> Option<Ratio>,
        float: impl FnOnce(f64, f64) -> f64,
    ) -> Outcome {
        if let (Self::Exact(left), Self::Exact(right)) = (self, other)
            && let Some(ratio) = exact(left, right)
        {
            return Ok(Self::Exact(ratio));
        }
        Self::float(float(self.to_float(), other.to_float()))
    }

    pub(super) fn negate(self) -> Self {
        match self {
            Self::Exact(Ratio { top, bottom }) => Self::Exact(Ratio { top: -top, bottom }),
            Self::Float(value) => Self::Float(-value),
        }
    }

    pub(super) fn add(self, other: Self) -> Outcome {
        self.either(other, Ratio::checked_add, |left, right| left + right)
    }

    pub(super) fn subtract(self, other: Self) -> Outcome {
        self.add(other.negate())
    }

    pub(super) fn multiply(self, other: Self) -> Outcome {
        self.either(other, Ratio::checked_mul, |left, right| left * right)
    }

    pub(super) fn divide(self, other: Self) -> Outcome {
        if other.is_zero() {
            return domain("division by zero");
        }
        self.either(other, |left, right| left.checked_mul(right.inverse()?), |left, right| left / right)
    }

    pub(super) fn floor_divide(self, other: Self) -> Outcome {
        if other.is_zero() {
            return domain("division by zero");
        }
        let exact = |left: Ratio, right: Ratio| Ratio::new(left.checked_mul(right.inverse()?)?.floor(), 1);
        self.either(other, exact, |left, right| (left / right).floor())
    }

    /// The remainder of [`Self::floor_divide`], with the sign of the divisor.
    pub(super) fn modulo(self, other: Self) -> Outcome {
        if other.is_zero() {
            return domain("division by zero");
        }
        let exact = |left: Ratio, right: Ratio| {
            let times = left.checked_mul(right.inverse()?)?.floor();
            let whole = right.checked_mul(Ratio::new(times, 1)?)?;
            left.checked_add(Ratio { top: -whole.top, ..whole })
        };
        let float = |left: f64, right: f64| {
            let rest = left % right;
            if rest != 0.0 && (rest < 0.0) != (right < 0.0) { rest + right } else { rest }
        };
        self.either(other, exact, float)
    }

    pub(super) fn power(self, other: Self) -> Outcome {
        let exponent = other.to_float();
        if self.is_zero() && exponent < 0.0 {
            return domain("division by zero: 0 to a negative power");
        }
        if self.to_float() < 0.0 && exponent.fract() != 0.0 {
            return domain("a negative number to a fractional power is not a real number");
        }
        if let (Self::Exact(base), Some(exponent)) = (self, other.as_whole())
            && let Some(ratio) = base.checked_pow(exponent)
        {
            return Ok(Self::Exact(ratio));
        }
        Self::float(self.to_float().powf(exponent))
    }

    pub(super) fn compare(self, other: Self) -> std::cmp::Ordering {
        let difference = self.subtract(other);
        let sign = match difference {
            Ok(Self::Exact(ratio)) => ratio.top.signum() as f64,
            Ok(Self::Float(value)) => value,
            Err(_) => self.to_float() - other.to_float(),
        };
        sign.total_cmp(&0.0)
    }

    /// The result for the caller.
    pub(super) fn describe(self) -> Calculated {
        let float = self.to_float();
        // Every number here is finite.
        let rounded = || serde_json::Number::from_f64(float).unwrap_or_else(|| 0.into());
        match self {
            Self::Float(value) => {
                Calculated { value: rounded(), text: float_text(value), exact: false, fraction: None }
            }
            Self::Exact(ratio) => {
                let whole = self.as_whole().and_then(serde_json::Number::from_i128);
                let decimal = ratio.decimal();
                Calculated {
                    value: whole.unwrap_or_else(rounded),
                    exact: decimal.is_some(),
                    fraction: decimal.is_none().then(|| format!("{}/{}", ratio.top, ratio.bottom)),
                    text: decimal.unwrap_or_else(|| float_text(float)),
                }
            }
        }
    }
}

/// Parses an exponent, clamped to 100,000.
fn power_of_ten(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let valid = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    valid.then(|| sign * digits.parse::<i64>().map_or(100_000, |exponent| exponent.min(100_000)))
}

fn float_text(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-6..1e21).contains(&size) { format!("{value:e}") } else { value.to_string() }
}

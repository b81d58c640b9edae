//! Numerically stable statistics.

/// Above this binary exponent a square could overflow a double, so numbers are scaled first.
const SAFE_EXPONENT: i32 = 500;

/// Finite numbers, in original and sorted order.
#[derive(Debug)]
pub(super) struct Sample {
    numbers: Vec<f64>,
    sorted: Vec<f64>,
    /// The power of two by which numbers are divided before squaring.
    exponent: i32,
}

/// Moments for variances and correlations, updated by Welford's method.
#[derive(Clone, Copy, Debug, Default)]
struct Moments {
    count: f64,
    mean: [f64; 2],
    squares: [f64; 2],
    products: f64,
}

impl Moments {
    fn add(&mut self, x: f64, y: f64) {
        self.count += 1.0;
        let before = [x - self.mean[0], y - self.mean[1]];
        self.mean[0] += before[0] / self.count;
        self.mean[1] += before[1] / self.count;
        let after = [x - self.mean[0], y - self.mean[1]];
        self.squares[0] += before[0] * after[0];
        self.squares[1] += before[1] * after[1];
        self.products += before[0] * after[1];
    }
}

/// The exponent of the largest number, if scaling is needed; else 0.
fn scaling(numbers: &[f64]) -> i32 {
    let largest = numbers.iter().fold(0.0_f64, |largest, number| largest.max(number.abs()));
    // The bits of a double's exponent, less its bias.
    let exponent = ((largest.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    if largest > 0.0 && exponent.abs() > SAFE_EXPONENT { exponent } else { 0 }
}

/// A number times a power of two, in steps that a double can represent.
fn times_power_of_two(mut number: f64, mut exponent: i32) -> f64 {
    while exponent != 0 {
        let step = exponent.clamp(-1000, 1000);
        number *= 2.0_f64.powi(step);
        exponent -= step;
    }
    number
}

fn finite(number: f64) -> Option<f64> {
    number.is_finite().then_some(number)
}

impl Sample {
    pub(super) fn new(numbers: Vec<f64>) -> Self {
        let mut sorted = numbers.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        Self { exponent: scaling(&numbers), numbers, sorted }
    }

    pub(super) fn count(&self) -> usize {
        self.numbers.len()
    }

    fn moments(&self) -> Moments {
        let mut moments = Moments::default();
        for number in &self.numbers {
            moments.add(times_power_of_two(*number, -self.exponent), 0.0);
        }
        moments
    }

    /// The compensated sum; `None` if it overflows a double.
    pub(super) fn sum(&self) -> Option<f64> {
        let (mut sum, mut lost) = (0.0_f64, 0.0_f64);
        for number in &self.numbers {
            let next = sum + number;
            lost += if sum.abs() >= number.abs() { (sum - next) + number } else { (number - next) + sum };
            sum = next;
        }
        finite(sum + lost)
    }

    pub(super) fn minimum(&self) -> Option<f64> {
        self.sorted.first().copied()
    }

    pub(super) fn maximum(&self) -> Option<f64> {
        self.sorted.last().copied()
    }

    pub(super) fn mean(&self) -> Option<f64> {
        (!self.numbers.is_empty())
            .then(|| times_power_of_two(self.moments().mean[0], self.exponent))
            .and_then(finite)
    }

    pub(super) fn median(&self) -> Option<f64> {
        let middle = self.count() / 2;
        let upper = *self.sorted.get(middle)?;
        if self.count() % 2 == 1 {
            return Some(upper);
        }
        let lower = *self.sorted.get(middle - 1)?;
        let sum = lower + upper;
        Some(if sum.is_finite() { sum / 2.0 } else { lower / 2.0 + upper / 2.0 })
    }

    /// Variance and standard deviation with the divisor `count - freedom`; `None` if the count is too small or the value
    /// overflows a double.
    pub(super) fn spread(&self, freedom: usize) -> (Option<f64>, Option<f64>) {
        if self.count() <= freedom {
            return (None, None);
        }
        let scaled = self.moments().squares[0] / (self.count() - freedom) as f64;
        let variance = times_power_of_two(scaled, self.exponent.saturating_mul(2));
        (finite(variance), finite(times_power_of_two(scaled.sqrt(), self.exponent)))
    }

    /// The quantile of a probability from 0 to 1, interpolated between two numbers.
    pub(super) fn quantile(&self, probability: f64) -> Option<f64> {
        let place = probability * self.count().checked_sub(1)? as f64;
        let index = place.floor();
        let part = place - index;
        let low = *self.sorted.get(index as usize)?;
        let high = *self.sorted.get(index as usize + 1).unwrap_or(&low);
        let step = high - low;
        Some(if !step.is_finite() {
            low * (1.0 - part) + high * part
        } else if part < 0.5 {
            low + step * part
        } else {
            high - step * (1.0 - part)
        })
    }

    /// Counts numbers in bins of equal width, with the limits of each. The last bin includes its upper limit. If all
    /// numbers are equal, the bins span a width of 1 around them.
    pub(super) fn histogram(&self, bins: usize) -> Vec<(f64, f64, u64)> {
        let (Some(mut low), Some(mut high)) = (self.minimum(), self.maximum()) else { return Vec::new() };
        if low >= high {
            (low, high) = (low - 0.5, high + 0.5);
        }
        let parts = bins as f64;
        let edge = |index: usize| {
            let part = index as f64 / parts;
            if index == bins {
                high
            } else if (high - low).is_finite() {
                low + (high - low) / parts * index as f64
            } else {
                low * (1.0 - part) + high * part
            }
        };
        let edges: Vec<f64> = (0..=bins).map(edge).collect();
        let mut counts = vec![0_u64; bins];
        for number in &self.sorted {
            // The last edge at or below the number; the clamp corrects rounding at the ends.
            let index = edges.partition_point(|edge| edge <= number).clamp(1, bins) - 1;
            if let Some(count) = counts.get_mut(index) {
                *count += 1;
            }
        }
        edges.windows(2).zip(counts).map(|(edges, count)| (edges[0], edges[1], count)).collect()
    }
}

/// Pearson's correlation of pairs; `None` if a side is constant or there are fewer than two pairs.
pub(super) fn correlation(pairs: &[(f64, f64)]) -> Option<f64> {
    let (left, right): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let exponents = [scaling(&left), scaling(&right)];
    let mut moments = Moments::default();
    for (x, y) in pairs {
        moments.add(times_power_of_two(*x, -exponents[0]), times_power_of_two(*y, -exponents[1]));
    }
    let [left, right] = moments.squares;
    if left <= 0.0 || right <= 0.0 {
        return None;
    }
    finite(moments.products / (left.sqrt() * right.sqrt())).map(|value| value.clamp(-1.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn near(found: Option<f64>, expected: f64) {
        let found = found.unwrap();
        let apart = (found - expected).abs();
        assert!(apart <= 1e-12 * expected.abs().max(1e-300), "found {found:e}, expected {expected:e}");
    }

    #[test]
    fn a_large_offset_costs_no_digits() {
        let sample = Sample::new(vec![1e9 + 4.0, 1e9 + 7.0, 1e9 + 13.0, 1e9 + 16.0]);
        near(sample.spread(1).0, 30.0);
        near(sample.mean(), 1e9 + 10.0);
        near(Sample::new(vec![1e100, 1.0, -1e100]).sum(), 1.0);
    }

    #[test]
    fn numbers_at_the_ends_of_the_range_keep_their_statistics() {
        let large = Sample::new(vec![1e308, 1.5e308]);
        near(large.mean(), 1.25e308);
        near(large.median(), 1.25e308);
        near(large.spread(1).1, 0.5e308 / 2.0_f64.sqrt());
        assert_eq!(large.spread(1).0, None);
        assert_eq!(large.sum(), None);
        let apart = Sample::new(vec![-f64::MAX, f64::MAX]);
        near(apart.quantile(0.75), f64::MAX / 2.0);
        assert_eq!(apart.histogram(2).iter().map(|bin| bin.2).collect::<Vec<_>>(), [1, 1]);
        let small = Sample::new(vec![1e-200, 2e-200, 3e-200]);
        near(small.spread(1).1, 1e-200);
        let tiny = Sample::new(vec![5e-324, 1e-323]);
        assert_eq!((tiny.minimum(), tiny.maximum()), (Some(5e-324), Some(1e-323)));
        near(correlation(&[(1e300, 1e-300), (2e300, 2e-300), (3e300, 3e-300)]), 1.0);
    }

    #[test]
    fn an_undefined_statistic_is_none() {
        let empty = Sample::new(Vec::new());
        assert_eq!(
            (empty.mean(), empty.median(), empty.minimum(), empty.quantile(0.5)),
            (None, None, None, None)
        );
        assert!(empty.histogram(3).is_empty());
        assert_eq!(Sample::new(vec![1.0]).spread(1), (None, None));
        assert_eq!(Sample::new(vec![1.0]).spread(0), (Some(0.0), Some(0.0)));
        assert_eq!(correlation(&[(1.0, 2.0), (1.0, 3.0)]), None);
        assert_eq!(correlation(&[]), None);
    }

    proptest! {
        #[test]
        fn the_statistics_stand_in_order(numbers in prop::collection::vec(-1e12_f64..1e12, 1..200), bins in 1_usize..50) {
            let sample = Sample::new(numbers.clone());
            let (least, most) = (sample.minimum().unwrap(), sample.maximum().unwrap());
            let quantiles: Vec<f64> =
                (0..=20).map(|step| sample.quantile(f64::from(step) / 20.0).unwrap()).collect();
            prop_assert!(quantiles.windows(2).all(|pair| pair[0] <= pair[1]));
            prop_assert_eq!((quantiles[0], quantiles[20]), (least, most));
            let slack = 1e-9 * (1.0 + least.abs().max(most.abs()));
            let mean = sample.mean().unwrap();
            prop_assert!(least - slack <= mean && mean <= most + slack);
            prop_assert!(sample.spread(0).0.unwrap() >= 0.0);
            let histogram = sample.histogram(bins);
            prop_assert_eq!(histogram.len(), bins);
            prop_assert_eq!(histogram.iter().map(|bin| bin.2).sum::<u64>(), numbers.len() as u64);
            prop_assert!(histogram.windows(2).all(|pair| pair[0].1 <= pair[1].0));
        }

        #[test]
        fn shifting_and_stretching_moves_only_what_it_must(
            numbers in prop::collection::vec(-1e3_f64..1e3, 2..50), shift in -1e3_f64..1e3, stretch in 0.1_f64..10.0,
        ) {
            let sample = Sample::new(numbers.clone());
            let moved = Sample::new(numbers.iter().map(|number| number * stretch + shift).collect());
            let expected = sample.spread(1).0.unwrap() * stretch * stretch;
            prop_assert!((moved.spread(1).0.unwrap() - expected).abs() <= 1e-6 * (1.0 + expected));
            let pairs: Vec<(f64, f64)> = numbers.iter().map(|number| (*number, number * -stretch + shift)).collect();
            if let Some(value) = correlation(&pairs) {
                prop_assert!(value <= -0.999_999 || sample.spread(0).1.unwrap() < 1e-6);
            }
        }
    }
}

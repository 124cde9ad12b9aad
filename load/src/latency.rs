//! How long requests took.

use hdrhistogram::Histogram;
use serde::Serialize;

/// The longest latency that the histograms distinguish: an hour, in µs.
const LATENCY_MAX_US: u64 = 3_600_000_000;
/// Decimal digits of a latency that the histograms keep.
const LATENCY_DIGITS: u8 = 3;

/// Latency in µs. In open loop it counts from the scheduled time.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Latency {
    /// The median.
    pub p50_us: u64,
    /// The 90th percentile.
    pub p90_us: u64,
    /// The 99th percentile.
    pub p99_us: u64,
    /// The 99.9th percentile.
    pub p999_us: u64,
    /// The maximum.
    pub max_us: u64,
}

impl Latency {
    /// The percentiles of a histogram in µs.
    pub(crate) fn of(histogram: &Histogram<u64>) -> Self {
        Self {
            p50_us: histogram.value_at_quantile(0.5),
            p90_us: histogram.value_at_quantile(0.9),
            p99_us: histogram.value_at_quantile(0.99),
            p999_us: histogram.value_at_quantile(0.999),
            max_us: histogram.max(),
        }
    }
}

/// A histogram of latencies in µs.
pub(crate) fn latencies() -> Histogram<u64> {
    Histogram::new_with_max(LATENCY_MAX_US, LATENCY_DIGITS)
        .expect("invariant: the bounds of the histogram are constants")
}

//! How unreliable the network is.

/// Probabilities between 0 and 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Weather {
    /// A message takes up to seconds.
    pub(crate) slow: f64,
    /// A message becomes a hint, which is delivered much later.
    pub(crate) hinted: f64,
    /// A message never arrives.
    pub(crate) lost: f64,
    /// A coordinator does not answer, whatever it did.
    pub(crate) silent: f64,
    /// A hint is never delivered.
    pub(crate) hint_lost: f64,
}

impl Weather {
    pub(crate) const CALM: Weather =
        Weather { slow: 0.0, hinted: 0.0, lost: 0.0, silent: 0.0, hint_lost: 0.0 };
}

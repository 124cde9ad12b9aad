//! How badly messages travel.

/// Shares between 0 and 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Weather {
    /// Takes up to seconds.
    pub(crate) slow: f64,
    /// Becomes a hint, delivered much later.
    pub(crate) hinted: f64,
    /// Never arrives.
    pub(crate) lost: f64,
    /// A coordinator answers nothing, whatever it did.
    pub(crate) silent: f64,
    /// Of hints: never delivered.
    pub(crate) hint_lost: f64,
}

impl Weather {
    pub(crate) const CALM: Weather =
        Weather { slow: 0.0, hinted: 0.0, lost: 0.0, silent: 0.0, hint_lost: 0.0 };
}

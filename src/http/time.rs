//! Times in answers.

use chrono::{DateTime, SecondsFormat, Utc};
use orderfree_core::protocol::Timestamp;

/// RFC 3339 in UTC with microseconds. Times beyond the calendar, which only a forged row can have, become
/// the calendar's last time.
pub(crate) fn rfc3339(time: Timestamp) -> String {
    let time =
        DateTime::from_timestamp_micros(time.as_micros()).unwrap_or(DateTime::<Utc>::MAX_UTC);
    time.to_rfc3339_opts(SecondsFormat::Micros, true)
}

//! Serializes times as RFC 3339 in UTC with milliseconds, and durations as milliseconds.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};

use crate::error::{Cause, RequestError};

pub fn time<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&rfc3339(*time))
}

pub fn millis<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(whole_millis(*duration))
}

pub fn millis_if_any<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match duration {
        Some(duration) => millis(duration, serializer),
        None => serializer.serialize_none(),
    }
}

pub fn cause<S: Serializer>(cause: &Option<Cause>, serializer: S) -> Result<S::Ok, S::Error> {
    match cause {
        Some(cause) => serializer.collect_str(cause),
        None => serializer.serialize_none(),
    }
}

pub fn answer<S: Serializer, T: Serialize>(answer: &Result<T, RequestError>, serializer: S) -> Result<S::Ok, S::Error> {
    match answer {
        Ok(told) => told.serialize(serializer),
        Err(error) => serializer.collect_map([("error", error.to_string())]),
    }
}

fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The end of the year 9999, the latest time in the format.
const LATEST: Duration = Duration::from_secs(253_402_300_799);

/// For example `2026-11-22T10:30:00.250Z`. Writes a time outside the format as the nearest one in it.
fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time.clamp(UNIX_EPOCH, UNIX_EPOCH + LATEST)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_can_be_written() {
        let day = Duration::from_secs(86_400);
        for (time, text) in [
            (UNIX_EPOCH - day, "1970-01-01T00:00:00.000Z"),
            (UNIX_EPOCH + Duration::from_millis(1_709_164_800_250), "2024-02-29T00:00:00.250Z"),
            (UNIX_EPOCH + LATEST + day, "9999-12-31T23:59:59.000Z"),
        ] {
            assert_eq!(rfc3339(time), text);
        }
    }
}

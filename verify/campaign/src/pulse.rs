//! An idle process that notices when the machine stalls: it wants to wake every few milliseconds. The judge
//! widens bounds of time by the stalls that it saw.

use std::time::Duration;

use crate::history::{History, now};

const TICK: Duration = Duration::from_millis(5);
const LATE: u64 = 15_000_000;

pub fn beat(history: &History) {
    loop {
        let before = now();
        std::thread::sleep(TICK);
        let late = now() - before;
        if late > LATE {
            history.line_at(before, "stall", format_args!(r#""d":{late}"#));
        }
    }
}

//! The stages of an owner at a name ([`entry::Stage`]), and the transitions from one stage to the next.

pub mod asking;
pub mod attempt;
pub mod confirming;
pub mod counting;
pub mod detaching;
pub mod entry;
pub mod guards;
pub mod held;
pub mod hold;
pub mod line;
pub mod queued;
pub mod releasing;
pub mod renewal;

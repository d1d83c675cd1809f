//! The independent reference: textbook forward pass on candle, selector rules in f64.

pub mod forward;
pub mod select;

//! Decisions in odd combinations: modes, stores, parents, blocks, reservations.

mod bench;
mod counted;
mod huge;
mod modes;
mod parents;
mod reload;
mod reported;
mod reserved;
mod thresholds;

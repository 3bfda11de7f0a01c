use crate::Options;
pub(super) fn run(_: &Options) {}

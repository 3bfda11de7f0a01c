//! Shares of one capacity for many processes, with one script as the coordinator.

//! Leases and refusals kept in this process, so that most calls need no store.

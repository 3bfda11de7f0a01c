//! Real servers for tests and benchmarks, each on a free port and stopped by its own process id.

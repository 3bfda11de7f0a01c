//! Whatever is asked: what clients are told is well formed, true, and nothing of their own.

mod echo;
mod numbers;

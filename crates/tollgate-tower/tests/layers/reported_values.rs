//! For any request: the values that clients get are well formed and true, and contain nothing that
//! they sent.

mod echo;
mod numbers;

//! What happens when the store cannot answer.

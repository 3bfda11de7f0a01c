//! Errors that have a code and a place in the documentation.

/// Gives an error the methods `code` and `docs`, from its `code_and_docs`.
macro_rules! coded {
    ($error:ty, $example:literal) => {
        impl $error {
            #[doc = concat!("Returns the code, which never changes: `", $example, "`.")]
            #[must_use]
            pub const fn code(&self) -> &'static str {
                self.code_and_docs().0
            }

            /// Returns where the documentation explains it: a page and an anchor.
            #[must_use]
            pub const fn docs(&self) -> &'static str {
                self.code_and_docs().1
            }
        }
    };
}

pub(crate) use coded;

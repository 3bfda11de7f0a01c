//! The values that can be a part of a key.

use super::KeyBytes;
use std::{borrow::Cow, net::IpAddr, sync::Arc};

/// A value that can identify a client: a name, a number, or several of them.
///
/// It is implemented for strings, bytes, integers, addresses, and options and pairs of them. An
/// empty string and `None` identify no client.
///
/// # Examples
///
/// A type of your own:
///
/// ```
/// use tollgate_tower::key::{KeyBytes, KeyPart};
///
/// struct Account { tenant: u32, name: String }
///
/// impl KeyPart for Account {
///     fn write(&self, key: &mut KeyBytes) -> bool {
///         (self.tenant, self.name.as_str()).write(key)
///     }
/// }
/// # assert!(Account { tenant: 1, name: "ann".into() }.write(&mut KeyBytes::new()));
/// ```
pub trait KeyPart {
    /// Appends the value; returns false if it identifies no client.
    fn write(&self, key: &mut KeyBytes) -> bool;
}

impl KeyPart for [u8] {
    fn write(&self, key: &mut KeyBytes) -> bool {
        key.push(self);
        !self.is_empty()
    }
}

impl KeyPart for str {
    fn write(&self, key: &mut KeyBytes) -> bool {
        self.as_bytes().write(key)
    }
}

impl KeyPart for String {
    fn write(&self, key: &mut KeyBytes) -> bool {
        self.as_bytes().write(key)
    }
}

impl<const N: usize> KeyPart for [u8; N] {
    fn write(&self, key: &mut KeyBytes) -> bool {
        self.as_slice().write(key)
    }
}

impl KeyPart for Vec<u8> {
    fn write(&self, key: &mut KeyBytes) -> bool {
        self.as_slice().write(key)
    }
}

impl KeyPart for IpAddr {
    fn write(&self, key: &mut KeyBytes) -> bool {
        match self {
            Self::V4(address) => key.push(&address.octets()),
            Self::V6(address) => key.push(&address.octets()),
        }
        true
    }
}

/// A number is written in decimal, so that it is readable and the same in any width.
macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl KeyPart for $number {
            fn write(&self, key: &mut KeyBytes) -> bool {
                let mut digits = Digits { bytes: [0; 40], used: 0 };
                let fits = std::fmt::Write::write_fmt(&mut digits, format_args!("{self}")).is_ok();
                debug_assert!(fits, "39 digits and a sign are the longest");
                key.push(&digits.bytes[..digits.used]);
                fits
            }
        }
    )*};
}

numbers! { u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize }

/// A buffer for a number.
struct Digits {
    bytes: [u8; 40],
    used: usize,
}

impl std::fmt::Write for Digits {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let end = self.used + text.len();
        let room = self.bytes.get_mut(self.used..end).ok_or(std::fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.used = end;
        Ok(())
    }
}

impl<P: KeyPart> KeyPart for Option<P> {
    fn write(&self, key: &mut KeyBytes) -> bool {
        self.as_ref().is_some_and(|part| part.write(key))
    }
}

impl<P: KeyPart + ?Sized> KeyPart for &P {
    fn write(&self, key: &mut KeyBytes) -> bool {
        (**self).write(key)
    }
}

impl<P: KeyPart + ?Sized> KeyPart for Box<P> {
    fn write(&self, key: &mut KeyBytes) -> bool {
        (**self).write(key)
    }
}

impl<P: KeyPart + ?Sized> KeyPart for Arc<P> {
    fn write(&self, key: &mut KeyBytes) -> bool {
        (**self).write(key)
    }
}

impl<P: KeyPart + ToOwned + ?Sized> KeyPart for Cow<'_, P> {
    fn write(&self, key: &mut KeyBytes) -> bool {
        (**self).write(key)
    }
}

impl<A: KeyPart, B: KeyPart> KeyPart for (A, B) {
    fn write(&self, key: &mut KeyBytes) -> bool {
        self.0.write(key) && self.1.write(key)
    }
}

//! Rate limiting as a service.

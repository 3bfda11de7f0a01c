//! The metrics of layers, in addition to those of the library's types that they host.

use tollgate::observe::Family;

/// Writes the constants and the list of them.
macro_rules! families {
    ($($name:ident: $kind:ident $metric:literal $([$label:literal])? = $help:literal;)*) => {
        $(pub(crate) const $name: Family = Family::$kind($metric, $help)$(.label($label))?;)*
        /// Every metric of this crate.
        #[cfg(test)]
        const FAMILIES: &[Family] = &[$($name),*];
    };
}

families! {
    SHADOW_DENIED: counter "tollgate_shadow_denied_total" ["outcome"] = "Requests that a policy in shadow mode would have denied.";
    NO_KEY: counter "tollgate_no_key_total" = "Requests that were refused because they have no key.";
    STORE_ERRORS: counter "tollgate_store_errors_total" = "Requests that the store did not answer, whether they passed or not.";
    BOUNDS_REACHED: counter "tollgate_bounds_reached_total" = "Requests that were refused because a bound of the store was reached.";
    DISTINCT_KEYS: gauge "tollgate_distinct_keys" = "Distinct keys since the start, estimated with a standard error of 1.6 %.";
    TIMEOUTS: counter "tollgate_timeouts_total" ["phase"] = "Calls that took too long, by the phase that ended them; not_run: the deadline had passed before the call.";
    PACED: counter "tollgate_paced_calls_total" ["event"] = "Calls of a paced client: sent, waited, refused here, refused by the server.";
    PACE_STOPS: counter "tollgate_pace_stops_total" = "Responses that stopped all calls to a server for a time.";
    PACE_SERVERS: gauge "tollgate_pace_servers" = "Servers, or routes of them, whose limits the client remembers.";
    SHAPED_BYTES: counter "tollgate_shaped_bytes_total" ["outcome"] = "Bytes of bodies: at_once, or delayed if they had to wait.";
    FALLBACKS: counter "tollgate_fallbacks_total" = "Calls that the fallback answered.";
    STACK_CALLS: counter "tollgate_stack_calls_total" ["result"] = "Calls of a stack, as their callers see them.";
    STACK_REFUSALS: counter "tollgate_stack_refusals_total" ["part"] = "Calls that a part of a stack refused.";
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prometheus refuses a name that has two meanings, and users read them in docs/observability.md.
    #[test]
    fn names_are_distinct_and_documented() {
        let page = include_str!("../../../../docs/observability.md");
        for (number, family) in FAMILIES.iter().enumerate() {
            let name = family.name();
            assert!(FAMILIES[..number].iter().all(|other| other.name() != name), "{name}");
            assert!(page.contains(&format!("`{name}")), "{name} is not documented");
        }
    }
}

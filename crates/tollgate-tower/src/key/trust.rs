//! The proxies whose headers about a client are believed.

use super::KeyError;
use ipnet::{IpNet, Ipv4Net};
use std::{
    borrow::Cow,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

/// The proxies that are believed about the address of a client.
#[derive(Clone, Debug)]
#[must_use]
pub struct Trust(pub(super) Rule);

#[derive(Clone, Debug)]
pub(super) enum Rule {
    Hops(u8),
    Networks(Arc<Networks>),
}

/// Networks that were parsed, and the first error.
#[derive(Debug)]
pub(super) struct Networks {
    list: Vec<IpNet>,
    bad: Option<KeyError>,
}

impl Trust {
    /// Believes this many proxies, the nearest included.
    ///
    /// Each request must come through all of them: the service must not be reachable in any other
    /// way. With 1 the last entry of the list is the client, with 2 the one before it.
    pub const fn hops(hops: u8) -> Self {
        Self(Rule::Hops(hops))
    }

    /// Believes proxies in these networks: `"10.0.0.0/8"`, `"2001:db8::/32"`, or one address.
    ///
    /// The list is read from the right as long as the writer of an entry is in these networks; the
    /// first address outside of them is the client. If all are inside, it is the leftmost one; so a
    /// client within the trusted networks may claim any address.
    ///
    /// A network of NAT64, 6to4 or Teredo addresses does not include the IPv4 addresses that they
    /// embed.
    pub fn networks<N: AsRef<str>>(networks: impl IntoIterator<Item = N>) -> Self {
        let (mut list, mut bad) = (Vec::new(), None);
        for text in networks {
            match read_network(text.as_ref()) {
                Ok(network) => list.push(network),
                Err(error) => bad = bad.or(Some(error)),
            }
        }
        // Adjacent networks are merged, so that two halves of the Internet count as all of it.
        Self(Rule::Networks(Arc::new(Networks { list: IpNet::aggregate(&list), bad })))
    }

    /// Believes proxies in private networks and on this machine: RFC 1918, RFC 4193, link-local and
    /// loopback addresses.
    ///
    /// Use it only if clients come from elsewhere: see [`networks`](Self::networks).
    pub fn private_networks() -> Self {
        Self::networks([
            "10.0.0.0/8",
            "172.16.0.0/12",
            "192.168.0.0/16",
            "169.254.0.0/16",
            "127.0.0.0/8",
            "fc00::/7",
            "fe80::/10",
            "::1/128",
        ])
    }

    /// Tells whether headers of this peer are believed, other than lists of addresses: behind a
    /// number of hops every peer is a proxy.
    pub(crate) fn believes(&self, peer: IpAddr) -> bool {
        match &self.0 {
            Rule::Hops(_) => true,
            Rule::Networks(networks) => networks.contain(peer.to_canonical()),
        }
    }

    /// Tells whether a header can be believed by this rule.
    pub(crate) fn check(&self, header: Cow<'static, str>) -> Result<(), KeyError> {
        match &self.0 {
            Rule::Hops(0) => Err(KeyError::NoHops { header }),
            Rule::Hops(_) => Ok(()),
            Rule::Networks(networks) => networks.check(),
        }
    }
}

impl Networks {
    pub(super) fn contain(&self, address: IpAddr) -> bool {
        self.list.iter().any(|network| network.contains(&address))
    }

    fn check(&self) -> Result<(), KeyError> {
        if let Some(error) = &self.bad {
            return Err(error.clone());
        }
        if self.list.is_empty() {
            return Err(KeyError::NoNetworks);
        }
        // All of public IPv6 is in 2000::/3.
        let all = self.list.iter().find(|network| match network {
            IpNet::V4(network) => network.prefix_len() == 0,
            IpNet::V6(network) => network.prefix_len() <= 3 && network.contains(&PUBLIC_V6),
        });
        if let Some(network) = all {
            return Err(KeyError::TrustsEverybody { network: network.to_string() });
        }
        // No IPv4 client has an address from 224.0.0.0 on: those are multicast and reserved.
        let below = [([0, 0, 0, 0], 1), ([128, 0, 0, 0], 2), ([192, 0, 0, 0], 3)];
        if below.into_iter().all(|(first, bits)| self.contain_all_of(first.into(), bits)) {
            let network = "0.0.0.0 to 223.255.255.255".to_owned();
            return Err(KeyError::TrustsEverybody { network });
        }
        Ok(())
    }

    fn contain_all_of(&self, first: Ipv4Addr, bits: u8) -> bool {
        let part = Ipv4Net::new(first, bits).map(IpNet::V4);
        part.is_ok_and(|part| self.list.iter().any(|network| network.contains(&part)))
    }
}

const PUBLIC_V6: std::net::Ipv6Addr = std::net::Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0);

/// Reads a network or an address. IPv4 in IPv6 form is IPv4, as it is for clients.
fn read_network(text: &str) -> Result<IpNet, KeyError> {
    let text = text.trim();
    let read = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    let bad = |meant| KeyError::Network { text: text.to_owned(), meant };
    let network: IpNet = read.map_err(|_| bad(None))?;
    if network != network.trunc() {
        return Err(bad(Some(network.trunc().to_string())));
    }
    if let IpNet::V6(v6) = network
        && let Some(inner) = v6.network().to_ipv4_mapped()
        && let Some(bits) = v6.prefix_len().checked_sub(96)
        && let Ok(v4) = Ipv4Net::new(inner, bits)
    {
        return Ok(IpNet::V4(v4));
    }
    Ok(network)
}

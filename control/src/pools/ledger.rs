//! Who holds which (address, port, protocol), and whether one more may come in.
//!
//! The rules of sharing live here and nowhere else; which address to try is up to `allocate` and its neighbours.
//!
//! - The same (address, port, protocol) has one owner: who claimed it first.
//! - A LoadBalancer address is one Service's own, unless all that hold it carry the same
//!   `tidegate.dev/allow-shared-ip` key and are of one namespace, or the pool shares across namespaces.
//! - External IPs are shared by port, as Kubernetes has it: the pool's selectors say who may claim one.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::model::{ObjectKey, Protocol};

/// In what capacity an address is claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClaimKind {
    /// As an address of type LoadBalancer.
    LoadBalancer,
    /// As one of `spec.externalIPs`.
    ExternalIp,
}

/// A Service that wants ports of an address.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// Who.
    pub service: &'a ObjectKey,
    /// In what capacity.
    pub kind: ClaimKind,
    /// Which ports.
    pub ports: &'a [(Protocol, u16)],
    /// Its `tidegate.dev/allow-shared-ip`.
    pub sharing_key: Option<&'a str>,
    /// Whether the address's pool shares across namespaces.
    pub across_namespaces: bool,
}

/// Why a claim is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taken {
    /// Another Service has the port.
    Port {
        /// Who has it.
        owner: ObjectKey,
        /// Which one.
        protocol: Protocol,
        /// Which one.
        port: u16,
    },
    /// Another Service holds the address and the sharing keys are absent or differ.
    NotShared {
        /// Who holds it.
        owner: ObjectKey,
    },
    /// The keys agree, the namespaces do not, and the pool does not share across them.
    OtherNamespace {
        /// Who holds it.
        owner: ObjectKey,
    },
}

impl std::fmt::Display for Taken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Port { owner, protocol, port } => {
                write!(f, "{protocol} port {port} belongs to Service {owner}")
            }
            Self::NotShared { owner } => write!(f, "it belongs to Service {owner}"),
            Self::OtherNamespace { owner } => write!(f, "it belongs to Service {owner} of another namespace"),
        }
    }
}

#[derive(Debug)]
struct Holding {
    service: ObjectKey,
    kind: ClaimKind,
    ports: Vec<(Protocol, u16)>,
    sharing_key: Option<String>,
}

/// All claims granted so far.
#[derive(Debug, Default)]
pub struct Ledger {
    holdings: BTreeMap<IpAddr, Vec<Holding>>,
    /// How many of an address carry a sharing key.
    keyed: BTreeMap<String, BTreeMap<IpAddr, usize>>,
}

impl Ledger {
    /// Whether anyone holds the address.
    #[must_use]
    pub fn is_held(&self, ip: IpAddr) -> bool {
        self.holdings.contains_key(&ip)
    }

    /// How many addresses are held.
    #[must_use]
    pub fn held_count(&self) -> usize {
        self.holdings.len()
    }

    /// Who holds the address, in the order in which they came.
    pub fn holders(&self, ip: IpAddr) -> impl Iterator<Item = &ObjectKey> {
        self.holdings.get(&ip).into_iter().flatten().map(|h| &h.service)
    }

    /// Addresses of type LoadBalancer whose holders carry this sharing key, sorted.
    pub fn shared_under<'a>(&'a self, key: &str) -> impl Iterator<Item = IpAddr> + use<'a> {
        let keyed = self.keyed.get(key).into_iter().flatten();
        keyed.filter(|(ip, count)| self.holdings[ip].len() == **count).map(|(ip, _)| *ip)
    }

    /// Whether a Service of the namespace holds the address as LoadBalancer.
    #[must_use]
    pub fn namespace_holds(&self, namespace: &str, ip: IpAddr) -> bool {
        let of = |h: &Holding| h.kind == ClaimKind::LoadBalancer && h.service.namespace == namespace;
        self.holdings.get(&ip).is_some_and(|all| all.iter().any(of))
    }

    /// Whether the claim could be granted on the address.
    ///
    /// # Errors
    /// The first holder in its way, in the order in which they came.
    pub fn admits(&self, ip: IpAddr, claim: &Claim<'_>) -> Result<(), Taken> {
        let others = self.holdings.get(&ip).into_iter().flatten().filter(|h| h.service != *claim.service);
        for other in others {
            let owner = other.service.clone();
            if let Some((protocol, port)) = other.ports.iter().find(|p| claim.ports.contains(p)) {
                return Err(Taken::Port { owner, protocol: *protocol, port: *port });
            }
            if claim.kind == ClaimKind::ExternalIp && other.kind == ClaimKind::ExternalIp {
                continue;
            }
            if claim.sharing_key.is_none() || claim.sharing_key != other.sharing_key.as_deref() {
                return Err(Taken::NotShared { owner });
            }
            if owner.namespace != claim.service.namespace && !claim.across_namespaces {
                return Err(Taken::OtherNamespace { owner });
            }
        }
        Ok(())
    }

    /// Grants the claim, if nothing is in its way.
    ///
    /// # Errors
    /// As [`Ledger::admits`]; the ledger is unchanged then.
    pub fn claim(&mut self, ip: IpAddr, claim: &Claim<'_>) -> Result<(), Taken> {
        self.admits(ip, claim)?;
        if let Some(key) = claim.sharing_key {
            *self.keyed.entry(key.to_owned()).or_default().entry(ip).or_default() += 1;
        }
        self.holdings.entry(ip).or_default().push(Holding {
            service: claim.service.clone(),
            kind: claim.kind,
            ports: claim.ports.to_vec(),
            sharing_key: claim.sharing_key.map(str::to_owned),
        });
        Ok(())
    }
    /// Takes back all claims of a Service on the address.
    pub fn release(&mut self, ip: IpAddr, service: &ObjectKey) {
        let Some(holdings) = self.holdings.get_mut(&ip) else { return };
        for gone in holdings.extract_if(.., |h| h.service == *service) {
            let Some(key) = gone.sharing_key else { continue };
            let of_key = self.keyed.get_mut(&key).expect("it was counted when it was claimed");
            let count = of_key.get_mut(&ip).expect("it was counted when it was claimed");
            *count -= 1;
            if *count == 0 {
                of_key.remove(&ip);
            }
            if of_key.is_empty() {
                self.keyed.remove(&key);
            }
        }
        if holdings.is_empty() {
            self.holdings.remove(&ip);
        }
    }
}

//! Records which Service owns which (address, port, protocol), and decides whether another Service can share an
//! address.
//!
//! All rules for sharing are here. The passes (`allocate`) decide which address to try.
//!
//! - An (address, port, protocol) has one owner: the Service that claimed it first.
//! - A LoadBalancer address belongs to one Service, unless all its Services have the same
//!   `tidegate.dev/allow-shared-ip` key, and either they are in one namespace or the pool shares across namespaces.
//! - External IPs are shared by port, as in Kubernetes. The pool's selectors decide which Services may claim one.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use tidegate_model::objects::{ObjectKey, Protocol};

use super::PortKey;

/// How a Service uses an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClaimKind {
    /// As a LoadBalancer address.
    LoadBalancer,
    /// As one of `spec.externalIPs`.
    ExternalIp,
}

/// The claim of a Service on ports of an address.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// The Service.
    pub service: &'a ObjectKey,
    /// How it uses the address.
    pub kind: ClaimKind,
    /// The ports.
    pub ports: &'a [PortKey],
    /// Its `tidegate.dev/allow-shared-ip`.
    pub sharing_key: Option<&'a str>,
    /// Whether the address's pool shares across namespaces.
    pub across_namespaces: bool,
}

/// Why a claim is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimConflict {
    /// Another Service has the port.
    Port {
        /// The Service that owns it.
        owner: ObjectKey,
        /// The protocol of the port.
        protocol: Protocol,
        /// The number of the port.
        port: u16,
    },
    /// Another Service uses the address, and the sharing keys differ or at least one of the two has none.
    NotShared {
        /// A Service that uses it.
        owner: ObjectKey,
        /// Whether this Service has a sharing key.
        has_key: bool,
        /// Whether the owner has a sharing key.
        owner_has_key: bool,
    },
    /// The sharing keys match, but the namespaces differ, and the pool does not share across namespaces.
    OtherNamespace {
        /// A Service that uses it.
        owner: ObjectKey,
    },
}

impl std::fmt::Display for ClaimConflict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Port { owner, protocol, port } => {
                write!(f, "{protocol} port {port} belongs to Service {owner}")
            }
            Self::NotShared { owner, has_key, owner_has_key } => {
                let why = match (has_key, owner_has_key) {
                    (true, true) => "the tidegate.dev/allow-shared-ip keys differ",
                    (true, false) => "that Service has no tidegate.dev/allow-shared-ip key",
                    (false, true) => "only that Service has a tidegate.dev/allow-shared-ip key",
                    (false, false) => "neither Service has a tidegate.dev/allow-shared-ip key",
                };
                write!(f, "the address belongs to Service {owner}, and {why}")
            }
            Self::OtherNamespace { owner } => {
                write!(f, "the address belongs to Service {owner} of another namespace")
            }
        }
    }
}

impl ClaimConflict {
    /// The Service that prevents the claim.
    #[must_use]
    pub fn owner(&self) -> &ObjectKey {
        match self {
            Self::Port { owner, .. } | Self::NotShared { owner, .. } | Self::OtherNamespace { owner } => {
                owner
            }
        }
    }

    /// What would be granted for addresses of this pool.
    #[must_use]
    pub fn remedy(&self, pool: &str) -> String {
        match self {
            Self::Port { .. } => {
                "a free address, or ports that no other Service has on this address".to_owned()
            }
            Self::NotShared { .. } => {
                "a free address, or the same tidegate.dev/allow-shared-ip key on both Services".to_owned()
            }
            Self::OtherNamespace { .. } => {
                format!(
                    "a free address, or shareAcrossNamespaces: true in pool {pool}, which only an operator can set"
                )
            }
        }
    }
}

/// One kind of use of an address by a Service.
#[derive(Debug)]
struct GrantedClaim {
    service: Arc<ObjectKey>,
    kind: ClaimKind,
    sharing_key: Option<String>,
}

#[derive(Debug, Default)]
struct AddressClaims {
    /// One entry for each Service and kind of use, in the order of the claims.
    claims: Vec<GrantedClaim>,
    port_owners: BTreeMap<PortKey, Arc<ObjectKey>>,
}

/// All claims granted so far.
#[derive(Debug, Default)]
pub struct Ledger {
    addresses: BTreeMap<IpAddr, AddressClaims>,
    /// For each sharing key and address, the number of claims.
    keyed: BTreeMap<String, BTreeMap<IpAddr, usize>>,
}

impl Ledger {
    /// Whether any Service uses the address.
    #[must_use]
    pub fn is_owned(&self, ip: IpAddr) -> bool {
        self.addresses.contains_key(&ip)
    }

    /// The number of addresses in use.
    #[must_use]
    pub fn owned_count(&self) -> usize {
        self.addresses.len()
    }

    /// The Services that use the address, in the order of their claims.
    pub fn owners(&self, ip: IpAddr) -> impl Iterator<Item = &ObjectKey> {
        self.claims(ip).map(|granted| &*granted.service)
    }

    /// The Service that owns the port on the address.
    #[must_use]
    pub fn owner(&self, ip: IpAddr, port: PortKey) -> Option<&ObjectKey> {
        self.addresses.get(&ip)?.port_owners.get(&port).map(AsRef::as_ref)
    }

    /// LoadBalancer addresses whose Services have this sharing key, sorted.
    pub fn shared_under<'a>(&'a self, key: &str) -> impl Iterator<Item = IpAddr> + use<'a> {
        let keyed = self.keyed.get(key).into_iter().flatten();
        keyed.filter(|(ip, count)| self.addresses[ip].claims.len() == **count).map(|(ip, _)| *ip)
    }

    /// Whether a Service of the namespace uses the address.
    #[must_use]
    pub fn namespace_owns(&self, namespace: &str, ip: IpAddr) -> bool {
        self.claims(ip).any(|granted| granted.service.namespace == namespace)
    }

    fn claims(&self, ip: IpAddr) -> impl Iterator<Item = &GrantedClaim> {
        self.addresses.get(&ip).into_iter().flat_map(|owned| &owned.claims)
    }

    /// Whether the claim could be granted on the address.
    ///
    /// # Errors
    /// The first of its ports that another Service owns; otherwise the first Service that prevents it, in the order
    /// of claims.
    pub fn admits(&self, ip: IpAddr, claim: &Claim<'_>) -> Result<(), ClaimConflict> {
        let Some(owned) = self.addresses.get(&ip) else { return Ok(()) };
        for port in claim.ports {
            if let Some(owner) = owned.port_owners.get(port).filter(|owner| ***owner != *claim.service) {
                let (protocol, port) = *port;
                return Err(ClaimConflict::Port { owner: ObjectKey::clone(owner), protocol, port });
            }
        }
        let others = owned.claims.iter().filter(|granted| *granted.service != *claim.service);
        for other in others {
            if claim.kind == ClaimKind::ExternalIp && other.kind == ClaimKind::ExternalIp {
                continue;
            }
            let owner = ObjectKey::clone(&other.service);
            if claim.sharing_key.is_none() || claim.sharing_key != other.sharing_key.as_deref() {
                let (has_key, owner_has_key) = (claim.sharing_key.is_some(), other.sharing_key.is_some());
                return Err(ClaimConflict::NotShared { owner, has_key, owner_has_key });
            }
            if owner.namespace != claim.service.namespace && !claim.across_namespaces {
                return Err(ClaimConflict::OtherNamespace { owner });
            }
        }
        Ok(())
    }

    /// Grants the claim, if nothing prevents it.
    ///
    /// # Errors
    /// As for [`Ledger::admits`]. The ledger is then unchanged.
    pub fn claim(&mut self, ip: IpAddr, claim: &Claim<'_>) -> Result<(), ClaimConflict> {
        self.admits(ip, claim)?;
        let owned = self.addresses.entry(ip).or_default();
        let same = |granted: &&GrantedClaim| *granted.service == *claim.service;
        let service = owned.claims.iter().find(same).map(|granted| Arc::clone(&granted.service));
        let service = service.unwrap_or_else(|| Arc::new(claim.service.clone()));
        owned.port_owners.extend(claim.ports.iter().map(|port| (*port, Arc::clone(&service))));
        if !owned.claims.iter().filter(same).any(|granted| granted.kind == claim.kind) {
            if let Some(key) = claim.sharing_key {
                *self.keyed.entry(key.to_owned()).or_default().entry(ip).or_default() += 1;
            }
            let sharing_key = claim.sharing_key.map(str::to_owned);
            owned.claims.push(GrantedClaim { service, kind: claim.kind, sharing_key });
        }
        Ok(())
    }

    /// Releases all claims of a Service on the address.
    pub fn release(&mut self, ip: IpAddr, service: &ObjectKey) {
        let Some(owned) = self.addresses.get_mut(&ip) else { return };
        for gone in owned.claims.extract_if(.., |granted| *granted.service == *service) {
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
        owned.port_owners.retain(|_, owner| **owner != *service);
        if owned.claims.is_empty() {
            self.addresses.remove(&ip);
        }
    }
}

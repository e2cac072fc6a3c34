//! The addresses of all Services, none of which can be an endpoint.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use tidegate_model::objects::ObjectKey;

#[derive(Debug, Default)]
pub(super) struct Vips {
    /// The number of Services that have each address.
    counts: HashMap<IpAddr, u32>,
    by_service: BTreeMap<ObjectKey, Box<[IpAddr]>>,
}

impl Vips {
    pub(super) fn contains(&self, ip: &IpAddr) -> bool {
        self.counts.contains_key(ip)
    }

    /// Updates the addresses of Services. Returns the addresses that became VIPs or are no longer VIPs.
    pub(super) fn update<'a>(
        &mut self,
        changes: impl Iterator<Item = (&'a ObjectKey, Option<Box<[IpAddr]>>)>,
    ) -> Vec<IpAddr> {
        let mut changed: BTreeMap<IpAddr, /* was one */ bool> = BTreeMap::new();
        for (service, vips) in changes {
            let was = self.by_service.remove(service).unwrap_or_default();
            for ip in was.iter().chain(vips.iter().flatten()) {
                changed.entry(*ip).or_insert_with(|| self.counts.contains_key(ip));
            }
            vips.iter().flatten().for_each(|ip| *self.counts.entry(*ip).or_default() += 1);
            for ip in &was {
                let count = self.counts.get_mut(ip).expect("it was counted when it came");
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(ip);
                }
            }
            if let Some(vips) = vips.filter(|vips| !vips.is_empty()) {
                self.by_service.insert(service.clone(), vips);
            }
        }
        changed.into_iter().filter(|(ip, was)| self.contains(ip) != *was).map(|(ip, _)| ip).collect()
    }
}

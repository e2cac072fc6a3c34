//! The names of the service ports and backends of open flows. They are kept after their Service is removed, because its
//! flows end later.
//!
//! Invariant: at most [`NAMES_MAX`] service ports and as many backends are kept. Once there are more, those that don't
//! exist any more are forgotten.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use tidegate_spec::ids::{BackendId, ServiceId};
use tidegate_wire::rewrite::Endpoint;

use super::flow::{Ports, ServicePort};

/// Service ports and backends whose names are kept.
pub(crate) const NAMES_MAX: usize = 50_000;

/// See [the module](self).
#[derive(Debug, Default)]
pub(crate) struct Names {
    services: HashMap<ServiceId, Arc<ServicePort>>,
    backends: HashMap<BackendId, Endpoint>,
}

impl Names {
    /// The service port and the backend of a flow; `None` if one was removed long ago.
    pub(crate) fn of(
        &mut self,
        ports: &impl Ports,
        service: ServiceId,
        backend: BackendId,
    ) -> Option<(Arc<ServicePort>, Endpoint)> {
        let named = match self.services.get(&service) {
            Some(known) => Arc::clone(known),
            None => {
                let found = Arc::new(ports.service(service)?);
                limit(&mut self.services, |&id| ports.service(id).is_some());
                self.services.insert(service, Arc::clone(&found));
                found
            }
        };
        let endpoint = match self.backends.get(&backend) {
            Some(known) => *known,
            None => {
                let found = ports.backend(service, backend)?;
                limit(&mut self.backends, |_| false);
                self.backends.insert(backend, found);
                found
            }
        };
        Some((named, endpoint))
    }
}

/// Makes space for one more entry: removes those that `keep` refuses, or all if that isn't enough.
fn limit<K: Eq + Hash, V>(map: &mut HashMap<K, V>, keep: impl Fn(&K) -> bool) {
    if map.len() >= NAMES_MAX {
        map.retain(|key, _| keep(key));
    }
    if map.len() >= NAMES_MAX {
        map.clear();
    }
}

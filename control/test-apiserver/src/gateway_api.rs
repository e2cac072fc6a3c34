//! Definitions of the kinds of the Gateway API that the gateway reads. Their schemas accept everything, because the
//! server doesn't evaluate CEL, in which most of the rules are written.

use serde_json::json;

use crate::TestApiServer;

const GROUP: &str = "gateway.networking.k8s.io";

/// Kind, plural, whether it is namespaced, whether it has a status.
const KINDS: [(&str, &str, bool, bool); 6] = [
    ("GatewayClass", "gatewayclasses", false, true),
    ("Gateway", "gateways", true, true),
    ("ListenerSet", "listenersets", true, true),
    ("TCPRoute", "tcproutes", true, true),
    ("UDPRoute", "udproutes", true, true),
    ("ReferenceGrant", "referencegrants", true, false),
];

impl TestApiServer {
    /// Adds the definitions of GatewayClass, Gateway, ListenerSet, TCPRoute, UDPRoute and ReferenceGrant.
    ///
    /// # Errors
    /// See [`TestApiServer::apply`].
    pub fn define_gateway_api(&self) -> Result<(), String> {
        for (kind, plural, namespaced, has_status) in KINDS {
            let mut version = json!({
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            });
            if has_status {
                version["subresources"] = json!({"status": {}});
            }
            self.put(json!({
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {"name": format!("{plural}.{GROUP}")},
                "spec": {
                    "group": GROUP,
                    "scope": if namespaced { "Namespaced" } else { "Cluster" },
                    "names": {"kind": kind, "plural": plural},
                    "versions": [version],
                },
            }))?;
        }
        Ok(())
    }

    /// Deletes these definitions, and with them all objects of the kinds.
    pub fn remove_gateway_api(&self) {
        for (_, plural, ..) in KINDS {
            let name = format!("{plural}.{GROUP}");
            self.delete("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", &name);
        }
    }
}

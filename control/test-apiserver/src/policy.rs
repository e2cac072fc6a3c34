//! ValidatingAdmissionPolicies, as far as they can be decided without CEL: the result of a write if a policy lacks its
//! parameters.
//!
//! A real server looks up the parameters of a binding before it evaluates the match conditions of its policy. If the
//! kind of the parameters is not defined, or a required parameter does not exist, the policy refuses every write that
//! its rules match, unless its `failurePolicy` is `Ignore`. All expressions are assumed to allow the write.

use serde_json::Value;

use crate::api::Api;
use crate::error::{ApiError, ApiResult};
use crate::request::Target;
use crate::resource::Resource;

const GROUP: &str = "admissionregistration.k8s.io";

impl Api {
    /// Refuses a write if a policy has to decide on it and cannot.
    pub(crate) fn admit(&self, operation: &str, resource: &Resource, target: &Target) -> ApiResult<()> {
        let policies = format!("validatingadmissionpolicies.{GROUP}");
        for binding in self.store.list(&format!("validatingadmissionpolicybindings.{GROUP}"), "") {
            let name = binding["spec"]["policyName"].as_str().unwrap_or_default();
            let Some(policy) = self.store.get(&policies, "", name) else { continue };
            let constraints = &policy["spec"]["matchConstraints"]["resourceRules"];
            let matches = items(constraints).any(|rule| matches(rule, operation, resource, target));
            if !matches || policy["spec"]["failurePolicy"] == "Ignore" {
                continue;
            }
            if let Err(why) = self.parameters(&policy, &binding, target) {
                let binding = binding["metadata"]["name"].as_str().unwrap_or_default();
                let why = format!(
                    "ValidatingAdmissionPolicy '{name}' with binding '{binding}' denied request: failed to configure \
                     binding: {why}"
                );
                let refusal = ApiError::forbidden(&resource.group, &resource.plural, &target.name, &why);
                return Err(ApiError { code: 422, reason: "Invalid", ..refusal });
            }
        }
        Ok(())
    }

    /// Checks that the required parameters of a binding exist.
    fn parameters(&self, policy: &Value, binding: &Value, target: &Target) -> Result<(), String> {
        let (kind, wanted) = (&policy["spec"]["paramKind"], &binding["spec"]["paramRef"]);
        if kind.is_null() {
            return Ok(());
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (api_version, kind) = (text(&kind["apiVersion"]), text(&kind["kind"]));
        let Some(parameters) = self.resource_of(&api_version, &kind) else {
            return Err(format!(
                "failed to find resource referenced by paramKind: '{api_version}, Kind={kind}'"
            ));
        };
        let namespace = match text(&wanted["namespace"]) {
            _ if !parameters.namespaced => String::new(),
            namespace if namespace.is_empty() => target.namespace.clone(),
            namespace => namespace,
        };
        let found = match wanted["name"].as_str() {
            Some(name) => self.store.get(&parameters.storage, &namespace, name).is_some(),
            None => !self.store.list(&parameters.storage, &namespace).is_empty(),
        };
        if !found && wanted["parameterNotFoundAction"] == "Deny" {
            return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
        }
        Ok(())
    }
}

fn matches(rule: &Value, operation: &str, resource: &Resource, target: &Target) -> bool {
    let has = |key: &str, wanted: &str| items(&rule[key]).any(|one| one == "*" || one == wanted);
    let plural = match target.subresource.as_str() {
        "" => resource.plural.clone(),
        subresource => format!("{}/{subresource}", resource.plural),
    };
    has("operations", operation)
        && has("apiGroups", &resource.group)
        && has("apiVersions", &resource.version)
        && has("resources", &plural)
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

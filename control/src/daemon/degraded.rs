//! Lists what is wrong with the running gateway. `tidegate status` shows the lines as `DEGRADED`, and metrics their
//! number.
//!
//! Each module describes its own faults; here they are only collected.

use super::announcements;
use super::flow_sharing::Shown;
use super::state::State;

impl State {
    /// What is wrong, as text for display; empty if nothing is.
    pub(super) fn degraded(&self) -> Vec<String> {
        let (candidate, announced) = (self.candidate(), self.announcements());
        let failure = self.publish_failure().map(|failure| failure.to_string());
        let taken = self.name_taken();
        let taken = taken.map(|who| {
            format!("another gateway also has the name {} ({who}): this gateway does not lead", self.name)
        });
        let cannot_lead = candidate.cannot_lead.filter(|_| taken.is_none());
        let cannot_lead = cannot_lead.map(|why| format!("this gateway cannot lead: {why}"));
        let unsaved = self.unsaved().into_iter().filter_map(|(_, why)| why);
        let neighbors = super::operator::neighbors(&self.dataplane.stats());
        taken
            .into_iter()
            .chain(cannot_lead)
            .chain(candidate.status_failure)
            .chain(failure)
            .chain(self.health().degraded)
            .chain(self.renamed_devices())
            .chain(self.recreated_taps())
            .chain(self.route_fault())
            .chain(unsaved)
            .chain(self.events.trouble())
            .chain(neighbors.shortage())
            .chain(announced.as_deref().map(announcements::degraded).unwrap_or_default())
            .chain(self.flow_sharing().iter().flat_map(Shown::troubles))
            .chain(self.layer2().map(|layer2| layer2.troubles(&self.dataplane)).unwrap_or_default())
            .chain(self.main_loop.iteration.trouble())
            .chain(self.symptoms().of_gateway.iter().cloned())
            .chain(crate::logging::trouble())
            .collect()
    }
}

//! `neighbors`, `routes` and `links`: what the running gateway knows about its network.

use std::io::Write;

use clap::Args;
use tidegate_admin_api::{NeighborView, RouteView};

use super::args::Common;
use super::failure::Failure;
use super::output::Table;
use super::query::{found_all, report_if_empty};
use super::status_tables;

/// Options of `neighbors` and `routes`.
#[derive(Debug, Args)]
pub struct OnInterface {
    /// Show only those of this interface
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// Options of `links`.
#[derive(Debug, Args)]
pub struct Links {
    /// Names of interfaces; all if omitted
    names: Vec<String>,
    #[command(flatten)]
    common: Common,
}

impl OnInterface {
    pub(super) async fn neighbors(&self, out: &mut impl Write) -> Result<(), Failure> {
        let Common { socket, output } = &self.common;
        let mut neighbors = socket.gateway("neighbors")?.neighbors().await?.neighbors;
        neighbors.retain(|one| self.interface.as_ref().is_none_or(|wanted| *wanted == one.interface));
        output.style().print_list(out, &neighbors, || neighbors_table(&neighbors))?;
        report_if_empty(neighbors.len(), None);
        Ok(())
    }

    pub(super) async fn routes(&self, out: &mut impl Write) -> Result<(), Failure> {
        let Common { socket, output } = &self.common;
        let mut routes = socket.gateway("routes")?.routes().await?.routes;
        routes.retain(|one| self.interface.is_none() || self.interface == one.interface);
        output.style().print_list(out, &routes, || routes_table(&routes))?;
        report_if_empty(routes.len(), None);
        Ok(())
    }
}

impl Links {
    pub(super) async fn run(&self, out: &mut impl Write) -> Result<(), Failure> {
        let Self { names, common } = self;
        let mut links = common.socket.gateway("links")?.status().await?.interfaces;
        links.retain(|link| names.is_empty() || names.contains(&link.name));
        common.output.style().print_list(out, &links, || status_tables::interfaces(&links))?;
        found_all("links", names, |name| links.iter().any(|link| link.name == name))
    }
}

/// The table of `neighbors`.
pub(super) fn neighbors_table(neighbors: &[NeighborView]) -> Table {
    let mut table = Table::new(&["ADDRESS", "INTERFACE", "MAC", "STATE", "+ROUTES"]);
    for one in neighbors {
        table.row([
            one.address.to_string(),
            one.interface.clone(),
            one.mac.clone().unwrap_or_default(),
            one.state.as_str().to_owned(),
            one.routes.join(","),
        ]);
    }
    table
}

/// The table of `routes`.
pub(super) fn routes_table(routes: &[RouteView]) -> Table {
    let mut table = Table::new(&["TO", "VIA", "INTERFACE", "STATE", "+MAC"]);
    for one in routes {
        table.row([
            one.to.clone(),
            one.via.map_or_else(|| "<connected>".to_owned(), |via| via.to_string()),
            one.interface.clone().unwrap_or_default(),
            match (one.state, &one.interface) {
                (_, None) => "unreachable".to_owned(),
                (Some(state), _) => state.as_str().to_owned(),
                (None, _) => String::new(),
            },
            one.mac.clone().unwrap_or_default(),
        ]);
    }
    table
}

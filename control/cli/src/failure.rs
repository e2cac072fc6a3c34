//! Why a command that queries a gateway fails.

use std::io;

use tidegate_admin_api::ClientError;

/// Why a query was not answered completely.
#[derive(Debug)]
pub(super) enum Failure {
    Gateway(ClientError),
    /// The API server cannot be queried, or it does not have the requested data.
    Cluster(String),
    Output(io::Error),
    /// Somebody else cancelled what the command waits for.
    Cancelled(&'static str),
    /// Packets still arrived, or connections were left, at the timeout. That has been printed.
    NotDrained,
    /// The operator declined. That has been printed.
    Declined,
    /// The named objects do not exist. The others have been printed.
    NotFound(Vec<String>),
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::Gateway(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

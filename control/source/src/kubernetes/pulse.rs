//! Checks every few seconds whether the API server still answers.
//!
//! A watch without events says nothing about the API server: if a network drops packets silently, or a server hangs,
//! only the next missing bookmark shows it, a minute or more later. So while there are watches, a small request is
//! sent every [`PulseTimes::interval`]. If two of them in a row get no answer, every watch is dropped and the source
//! counts as lost. A refusal is an answer.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::connect::Connector;
use super::tuning::PulseTimes;
use super::wire::{self, Fault};

/// The number of consecutive unanswered requests after which the API server counts as lost.
const UNANSWERED_MAX: u32 = 2;

/// Reports the loss of the API server. Copies report the same.
#[derive(Debug, Clone)]
pub(super) struct Pulse(watch::Receiver<u64>);

impl Pulse {
    /// A pulse, and the task that sends requests until all copies are dropped.
    pub(super) fn new(
        connector: Arc<Connector>,
        times: PulseTimes,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (lost, heard) = watch::channel(0);
        (Self(heard), ask(connector, times, lost))
    }

    /// Waits until requests on the connection with this serial number, or a later one, are not answered.
    pub(super) async fn lost(&self, serial: u64) {
        let mut lost = self.0.clone();
        if lost.wait_for(|lost| *lost >= serial).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

async fn ask(connector: Arc<Connector>, times: PulseTimes, lost: watch::Sender<u64>) {
    let mut unanswered = 0;
    loop {
        sleep(times.interval).await;
        if lost.is_closed() {
            return;
        }
        let began = Instant::now();
        let Ok(Ok(connection)) = tokio::time::timeout(times.answer, connector.connection()).await else {
            continue;
        };
        let answer = wire::cluster(&connection, times.answer).await;
        let is_answered = !matches!(answer, Err(Fault::Silent(_) | Fault::Broken(_)));
        unanswered = if is_answered { 0 } else { unanswered + 1 };
        if unanswered >= UNANSWERED_MAX {
            // Each watch discards its connection itself.
            lost.send_replace(connection.serial);
            unanswered = 0;
        } else if !is_answered {
            // A request that failed early is followed by an extra pause of up to half a second; one that used up its
            // time is not.
            sleep(Duration::from_millis(500).saturating_sub(began.elapsed())).await;
        }
    }
}

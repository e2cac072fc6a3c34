//! Writes at a steady rate over HTTPS. Each write replaces one endpoint of one Service, as its controller would (PUT).

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hyper::Request;
use kube::config::Kubeconfig;
use serde_json::Value;
use tidegate_control_bench::cluster;
use tidegate_control_bench::world::{self, Size};
use tidegate_netlab::Lab;
use tokio::task::JoinSet;

use crate::figures::Quantiles;
use crate::plan::{Plan, SINGLE_EACH, SINGLES};
use crate::probes::Probes;
use crate::serve::admin_kubeconfig;

/// The results of the writes.
#[derive(Debug)]
pub(crate) struct Written {
    count: usize,
    took: Duration,
    /// The times from the request to its answer.
    answers: Quantiles,
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, took, answers } = self;
        let rate = *count as f64 / took.as_secs_f64();
        writeln!(f, "{count} changes written over HTTPS, {rate:.1} a second\n")?;
        writeln!(f, "{}", Quantiles::HEAD)?;
        writeln!(f, "{}", answers.row("the API server's answer to a write"))
    }
}

/// Writes changes until the time is over. Announces the changes that the probes can see.
///
/// # Errors
/// The API server refused a write.
pub(crate) fn write(lab: &Lab, plan: &Plan, probes: &Probes) -> Result<Written> {
    // A socket belongs to the namespace of the thread that creates it. This thread creates all sockets.
    lab.gateway().enter(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(write_all(lab, plan, probes))
    })
}

async fn write_all(lab: &Lab, plan: &Plan, probes: &Probes) -> Result<Written> {
    let kubeconfig = Kubeconfig::read_from(admin_kubeconfig(lab.directory()))?;
    let client = kube::Client::try_from(kube::Config::try_from(kubeconfig)?)?;
    let (began, mut writes, mut answers) = (Instant::now(), JoinSet::new(), Vec::new());
    let mut count = 0;
    loop {
        let due = Duration::from_secs_f64(count as f64 / plan.rate as f64);
        if due >= plan.time {
            break;
        }
        tokio::time::sleep_until((began + due).into()).await;
        let (slice, probe) = change(plan.size, count);
        let (client, waiting) = (client.clone(), probe.map(|(k, other)| probes.expect(count, k, other)));
        writes.spawn(async move {
            let sent = Instant::now();
            put(&client, &slice).await?;
            let answered = Instant::now();
            if let Some(waiting) = waiting {
                waiting.written(sent, answered);
            }
            anyhow::Ok(answered - sent)
        });
        while let Some(written) = writes.try_join_next() {
            answers.push(written??);
        }
        count += 1;
    }
    while let Some(written) = writes.join_next().await {
        answers.push(written??);
    }
    Ok(Written { count, took: began.elapsed(), answers: Quantiles::of(answers) })
}

/// The slice that change n writes, and the single endpoint if it is one.
fn change(size: Size, n: usize) -> (Value, Option<(usize, bool)>) {
    if n.is_multiple_of(SINGLE_EACH) {
        let round = n / SINGLE_EACH;
        // Each single endpoint alternates between two addresses. All start at the first one.
        let (k, other) = (round % SINGLES, (round / SINGLES).is_multiple_of(2));
        return (
            cluster::single_slice(cluster::single_service(size, k), cluster::single(k, other)),
            Some((k, other)),
        );
    }
    let of = n.wrapping_mul(0x9e37_79b1) % size.services;
    let mut slice = world::slices(size, of).next().expect("a Service has a slice");
    slice.endpoints[0] = world::endpoint(of, size.all() + n);
    (cluster::slice(of, &slice), None)
}

async fn put(client: &kube::Client, slice: &Value) -> Result<()> {
    let text = |name: &str| slice["metadata"][name].as_str().unwrap_or_default();
    let path = format!(
        "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices/{}?fieldManager=endpointslice-controller",
        text("namespace"),
        text("name")
    );
    let request = Request::put(&path).header("content-type", "application/json");
    let request = request.body(serde_json::to_vec(slice)?)?;
    client.request_text(request).await.with_context(|| format!("PUT {path}"))?;
    Ok(())
}

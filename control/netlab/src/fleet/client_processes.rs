//! The connections of several processes, `tidegate-demo lab tcp-clients` in the clients' namespace, behind one
//! interface.
//!
//! Open files are limited per process, and not every user can raise the limit.
//!
//! Invariant: the processes end when the value is dropped and when this process exits, because their input ends.

use super::connections::Tally;
use crate::binary;
use crate::exclusive::changing;
use crate::namespace::Namespace;
use anyhow::{Context, Result, bail};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::thread;

/// The processes.
#[derive(Debug)]
pub struct ClientProcesses {
    processes: Vec<ClientProcess>,
}

#[derive(Debug)]
struct ClientProcess {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Drop for ClientProcess {
    fn drop(&mut self) {
        // The process may have exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ClientProcess {
    fn start(client: &Namespace, tools: &Path) -> Result<Self> {
        let mut command = client.command(tools);
        command.args(["lab", "tcp-clients"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = changing(|| command.spawn()).context("cannot start tcp-clients")?;
        let requests = child.stdin.take().context("tcp-clients has no standard input")?;
        let answers = BufReader::new(child.stdout.take().context("tcp-clients has no standard output")?);
        Ok(Self { child, requests, answers })
    }

    fn request(&mut self, request: &str) -> Result<String> {
        writeln!(self.requests, "{request}").context("tcp-clients has ended")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        match line.trim_end_matches('\n').split_once(' ') {
            Some(("ok", answer)) => Ok(answer.to_owned()),
            Some(("error", why)) => bail!("{why}"),
            _ => bail!("tcp-clients has ended"),
        }
    }
}

impl ClientProcesses {
    /// Starts `count` processes in the namespace of the clients.
    ///
    /// # Errors
    /// When one cannot be started.
    pub fn start(client: &Namespace, tidegate: &Path, count: usize) -> Result<Self> {
        let tools = binary::of_tools(tidegate)?;
        let processes = (0..count).map(|_| ClientProcess::start(client, &tools)).collect::<Result<_>>()?;
        Ok(Self { processes })
    }

    /// Opens `count` connections to each of `services`, about as many in each process.
    ///
    /// # Errors
    /// When one is refused or not answered.
    pub fn open(&mut self, services: &[SocketAddr], count: usize) -> Result<()> {
        let vips: String = services.iter().map(|vip| format!(" {vip}")).collect();
        let (all, processes) = (count * services.len(), self.processes.len());
        let begin = |n: usize| all * n / processes;
        self.request_all(|n| format!("open {} {}{vips}", begin(n), begin(n + 1))).map(drop)
    }

    /// From now on, connections to this backend do not count as broken.
    ///
    /// # Errors
    /// When a process has ended.
    pub fn expect_loss(&mut self, backend: &str) -> Result<()> {
        self.request_all(|_| format!("expect-loss {backend}")).map(drop)
    }

    /// Waits until every connection has been pinged after this call.
    ///
    /// # Errors
    /// When a round takes too long, or a process has ended.
    pub fn ping_round(&mut self) -> Result<()> {
        self.request_all(|_| "ping-round".to_owned()).map(drop)
    }

    /// The tally of the connections so far, by Service.
    ///
    /// # Errors
    /// When a process has ended.
    pub fn tally(&mut self, services: usize) -> Result<Vec<Tally>> {
        let mut tallies = vec![Tally::default(); services];
        for answer in self.request_all(|_| format!("tally {services}"))? {
            let of_process: Vec<Tally> =
                serde_json::from_str(&answer).context("cannot parse the tallies of tcp-clients")?;
            tallies.iter_mut().zip(of_process).for_each(|(sum, one)| sum.add(one));
        }
        Ok(tallies)
    }

    /// Sends a request to all processes at once; it depends on the number of the process.
    fn request_all(&mut self, request: impl Fn(usize) -> String) -> Result<Vec<String>> {
        thread::scope(|scope| {
            let answers: Vec<_> = self
                .processes
                .iter_mut()
                .enumerate()
                .map(|(n, process)| {
                    let request = request(n);
                    scope.spawn(move || process.request(&request))
                })
                .collect();
            answers.into_iter().map(|thread| thread.join().expect("requesting does not panic")).collect()
        })
    }
}

//! The connections of several processes, `tidegate-demo lab tcp-hold` in the clients' namespace, as if they were of one.
//!
//! The limit of open files is one of each process, and not everybody can raise it.
//!
//! Invariant: the processes end with their value, and when this process ends, because their input ends.

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
pub struct Holders {
    holders: Vec<Holder>,
}

#[derive(Debug)]
struct Holder {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Holder {
    fn start(client: &Namespace, tools: &Path) -> Result<Self> {
        let mut command = client.command(tools);
        command.args(["lab", "tcp-hold"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = changing(|| command.spawn()).context("cannot start tcp-hold")?;
        let requests = child.stdin.take().context("its standard input")?;
        let answers = BufReader::new(child.stdout.take().context("its standard output")?);
        Ok(Self { child, requests, answers })
    }

    fn ask(&mut self, request: &str) -> Result<String> {
        writeln!(self.requests, "{request}").context("tcp-hold has ended")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        match line.trim_end_matches('\n').split_once(' ') {
            Some(("ok", answer)) => Ok(answer.to_owned()),
            Some(("error", why)) => bail!("{why}"),
            _ => bail!("tcp-hold has ended"),
        }
    }
}

impl Holders {
    /// Starts `count` processes in the namespace of the clients.
    ///
    /// # Errors
    /// When one cannot be started.
    pub fn start(client: &Namespace, tidegate: &Path, count: usize) -> Result<Self> {
        let tools = binary::of_tools(tidegate)?;
        let holders = (0..count).map(|_| Holder::start(client, &tools)).collect::<Result<_>>()?;
        Ok(Self { holders })
    }

    /// Opens `count` connections to each of `services`, about as many in each process.
    ///
    /// # Errors
    /// When one is refused or not answered.
    pub fn open(&mut self, services: &[SocketAddr], count: usize) -> Result<()> {
        let vips: String = services.iter().map(|vip| format!(" {vip}")).collect();
        let (all, processes) = (count * services.len(), self.holders.len());
        let begin = |n: usize| all * n / processes;
        self.ask_all(|n| format!("open {} {}{vips}", begin(n), begin(n + 1))).map(drop)
    }

    /// From now on, connections to this backend do not count as broken.
    ///
    /// # Errors
    /// When a process has ended.
    pub fn give_up(&mut self, backend: &str) -> Result<()> {
        self.ask_all(|_| format!("give-up {backend}")).map(drop)
    }

    /// Waits until every connection has been pinged after this call.
    ///
    /// # Errors
    /// When a round takes too long, or a process has ended.
    pub fn settle(&mut self) -> Result<()> {
        self.ask_all(|_| "settle".to_owned()).map(drop)
    }

    /// What became of the connections so far, by Service.
    ///
    /// # Errors
    /// When a process has ended.
    pub fn tally(&mut self, services: usize) -> Result<Vec<Tally>> {
        let mut tallies = vec![Tally::default(); services];
        for answer in self.ask_all(|_| format!("tally {services}"))? {
            let of_process: Vec<Tally> = serde_json::from_str(&answer).context("the tallies of tcp-hold")?;
            tallies.iter_mut().zip(of_process).for_each(|(sum, one)| sum.add(one));
        }
        Ok(tallies)
    }

    /// Asks all processes at once: their number says what.
    fn ask_all(&mut self, request: impl Fn(usize) -> String) -> Result<Vec<String>> {
        thread::scope(|scope| {
            let asked: Vec<_> = self
                .holders
                .iter_mut()
                .enumerate()
                .map(|(n, holder)| {
                    let request = request(n);
                    scope.spawn(move || holder.ask(&request))
                })
                .collect();
            asked.into_iter().map(|thread| thread.join().expect("asking does not panic")).collect()
        })
    }
}

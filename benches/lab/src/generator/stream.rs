//! A steady stream of packets of established connections, while the forwarder is restarted: it shows what is lost, for
//! how long, and which connections do not continue.
//!
//! The program that restarts the forwarder writes lines to standard input: `begin` and `end` around each restart. It
//! closes standard input at the end. For each `end`, a [`Window`] is printed as a line of JSON.

use std::io::{BufRead as _, Write as _};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use super::*;

/// Connections count as broken if a packet of each is sent repeatedly and none arrives for this long.
const BROKEN: Duration = Duration::from_secs(2);

/// The generator's sleep when nothing is due: the next gateway starts on the same CPU.
const PAUSE: Duration = Duration::from_micros(100);

/// A stream.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Stream {
    /// Packets per second.
    pub(crate) rate: f64,
}

/// The observations from a `begin` to its `end`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Window {
    pub(crate) offered: u64,
    pub(crate) received: u64,
    pub(crate) seconds: f64,
    /// The longest time in which every packet that was due was lost.
    pub(crate) gap_ms: f64,
    /// Connections whose packets arrive at another backend, with other addresses than before, or not at all. If
    /// backends answer through the forwarder, their packets count too.
    pub(crate) broken: u32,
    pub(crate) connections: u32,
}

/// Where the packets of a connection arrive: link address, addresses and ports. In a tunnel, only the link address
/// identifies the backend.
type End = ([u8; 6], Option<Seen>);

fn end_of(frame: &[u8]) -> Option<End> {
    Some((*frame.first_chunk()?, Seen::of(frame)))
}

/// Establishes the connections, and streams until standard input is closed.
///
/// # Errors
/// Like [`super::run`], or standard output is closed.
pub(crate) fn stream(job: &Job, of: Stream) -> Result<()> {
    with_generator(job, |generator| {
        // Otherwise the kernel would let the thread sleep longer.
        rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
        generator.establish()?;
        let lines = lines();
        let mut ends = vec![None; job.scenario.flows as usize];
        let missing = generator.check(&mut ends);
        ensure!(missing * 100 <= job.scenario.flows, "{missing} connections were not established");
        println!("ready");
        std::io::stdout().flush()?;
        while wait_for(&lines, "begin") {
            let window = generator.window(&lines, of.rate, &mut ends);
            println!("{}", serde_json::to_string(&window)?);
            std::io::stdout().flush()?;
        }
        Ok(())
    })
}

fn lines() -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    lines
}

/// Waits for a line. Returns whether it arrived before the end.
fn wait_for(lines: &Receiver<String>, wanted: &str) -> bool {
    lines.iter().any(|line| line == wanted)
}

impl Generator<'_> {
    fn window(&mut self, lines: &Receiver<String>, rate: f64, ends: &mut [Option<End>]) -> Window {
        let flows = self.job.scenario.flows;
        let per_frame = self.hz / rate;
        let begin = cycles::now();
        let (mut offered, mut received, mut last, mut gap) = (0_u64, 0_u64, begin, 0_u64);
        let mut take = |this: &mut Self| {
            let count = this.receive(Direction::Requests, |_, time, _| {
                if time >= begin {
                    received += 1;
                    gap = gap.max(time.saturating_sub(last));
                    last = last.max(time);
                }
            });
            count > 0
        };
        let mut now = begin;
        while matches!(lines.try_recv(), Err(TryRecvError::Empty)) {
            let due = ((now - begin) as f64 / per_frame) as u64 + 1;
            let count = due.saturating_sub(offered).min(BURST as u64);
            for _ in 0..count {
                let flow = self.random.below(flows);
                let time = begin + (offered as f64 * per_frame) as u64;
                self.push(Direction::Requests, flow, time, flags::ACK);
                offered += 1;
            }
            if count > 0 {
                self.flush(Direction::Requests);
            }
            if !take(self) && count == 0 {
                std::thread::sleep(PAUSE);
            }
            now = cycles::now();
        }
        let mut quiet_since = Instant::now();
        while quiet_since.elapsed() < LATE {
            if take(self) {
                quiet_since = Instant::now();
            }
        }
        let gap = gap.max(now.saturating_sub(last));
        let broken = self.check(ends);
        Window {
            offered,
            received,
            seconds: (now - begin) as f64 / self.hz,
            gap_ms: gap as f64 / self.hz * 1e3,
            broken,
            connections: flows,
        }
    }

    /// Sends a packet of each connection in each direction, and returns the number of packets that do not arrive where
    /// `ends` expects them. Fills in unknown ends, and updates those that have changed.
    fn check(&mut self, ends: &mut [Option<End>]) -> u32 {
        let mut broken = vec![true; ends.len()];
        let mut now_at: Vec<Option<End>> = vec![None; ends.len()];
        self.probe(Direction::Requests, |flow, frame| {
            if let (Some(end), Some(place)) = (end_of(frame), now_at.get_mut(flow as usize)) {
                *place = Some(end);
            }
        });
        for ((before, now), broken) in ends.iter_mut().zip(now_at).zip(&mut broken) {
            *broken = now.is_none() || before.is_some() && *before != now;
            if now.is_some() {
                *before = now;
            }
        }
        if self.job.returns {
            for (seen, end) in self.seen.iter_mut().zip(ends.iter()) {
                *seen = end.and_then(|(_, seen)| seen).unwrap_or_default();
            }
            let mut answered = vec![false; ends.len()];
            self.probe(Direction::Replies, |flow, _| {
                if let Some(one) = answered.get_mut(flow as usize) {
                    *one = true;
                }
            });
            broken.iter_mut().zip(answered).for_each(|(broken, answered)| *broken |= !answered);
        }
        u32::try_from(broken.iter().filter(|&&one| one).count()).unwrap_or(u32::MAX)
    }

    /// Sends a packet of each connection until it has arrived, or no more packets arrive.
    fn probe(&mut self, direction: Direction, mut arrived: impl FnMut(u32, &[u8])) {
        let flows = self.job.scenario.flows;
        let mut missing: Vec<bool> = vec![true; flows as usize];
        let mut progress = Instant::now();
        while progress.elapsed() < BROKEN && missing.contains(&true) {
            let begin = cycles::now();
            let before = missing.iter().filter(|&&one| one).count();
            let mut in_flight = 0;
            let mut since = Instant::now();
            let mut take = |this: &mut Self, missing: &mut Vec<bool>| {
                this.receive(direction, |flow, time, frame| {
                    if time >= begin
                        && let Some(one) = missing.get_mut(flow as usize)
                    {
                        *one = false;
                        arrived(flow, frame);
                    }
                }) as u64
            };
            for flow in 0..flows {
                if !missing[flow as usize] {
                    continue;
                }
                self.send_one(direction, flow, flags::ACK);
                in_flight += 1;
                while in_flight >= WINDOW {
                    let back = take(self, &mut missing);
                    if back > 0 {
                        in_flight = in_flight.saturating_sub(back);
                        since = Instant::now();
                    } else if since.elapsed() > LATE {
                        // The rest of the window is lost.
                        (in_flight, since) = (0, Instant::now());
                    }
                }
            }
            let mut quiet_since = Instant::now();
            while quiet_since.elapsed() < LATE {
                if take(self, &mut missing) > 0 {
                    quiet_since = Instant::now();
                }
            }
            if missing.iter().filter(|&&one| one).count() < before {
                progress = Instant::now();
            }
        }
    }
}

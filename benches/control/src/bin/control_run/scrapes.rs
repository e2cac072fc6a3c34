//! Scrapes of `/metrics`: how long they take and how large they are, with and without series for each backend, plain and
//! compressed.

use std::fmt::Write as _;

use anyhow::{Result, ensure};

use crate::daemon::Daemon;
use crate::figures::Quantiles;

/// Requests the page this many times in each form. Nothing else happens meanwhile.
///
/// # Errors
/// A request failed, or the gateway did not reload its configuration.
pub(crate) fn measure(daemon: &mut Daemon, count: usize) -> Result<String> {
    let mut text = format!("\n{}\n", Quantiles::HEAD);
    for per_backend in [true, false] {
        daemon.reload_with(per_backend)?;
        for encoding in ["identity", "gzip"] {
            let (mut times, mut bytes) = (Vec::new(), 0);
            for _ in 0..count {
                let (time, body) = daemon.scrape(encoding)?;
                times.push(time);
                bytes = body;
            }
            ensure!(bytes > 0, "the page is empty");
            let series = if per_backend { "with" } else { "without" };
            let what = format!("a scrape of {bytes} bytes ({encoding}), {series} series for each backend");
            writeln!(text, "{}", Quantiles::of(times).row(&what))?;
        }
    }
    Ok(text)
}

//! Errors as text for display: one line, without any content of the files that they are about. Every crate that sends
//! requests uses it, because the client's errors mention their causes only in `Error::source`.

use std::error::Error;

/// An error and its causes, without repetitions and without type names.
#[must_use]
pub fn causes(error: &dyn Error) -> String {
    let mut text = first_line(error);
    let mut next = error.source();
    while let Some(cause) = next {
        let more = first_line(cause);
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = cause.source();
    }
    text.replace("ServiceError: ", "")
}

/// The first line of an error. The kubeconfig parser adds lines with an excerpt of the file, which may contain a token
/// or a private key, while logs and statuses have more readers than the file.
fn first_line(error: &dyn Error) -> String {
    let text = error.to_string();
    text.lines().map(str::trim_end).find(|line| !line.is_empty()).unwrap_or_default().to_owned()
}

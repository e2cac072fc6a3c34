//! Runs a future alongside tasks that must not end before it, and detects if one does.

use tokio::task::JoinSet;

/// Runs `main` until it ends or one of the tasks does. Returns why the task ended, if one did.
pub(super) async fn first_end(main: impl Future<Output = ()>, tasks: &mut JoinSet<()>) -> Option<String> {
    tokio::select! {
        () = main => None,
        Some(ended) = tasks.join_next() => Some(match ended {
            Ok(()) => "the task returned".to_owned(),
            Err(error) => error.to_string(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    async fn fails() {
        panic!("on purpose");
    }

    #[tokio::test]
    async fn a_task_that_panics_or_returns_ends_the_main_future() {
        let mut tasks = JoinSet::new();
        tasks.spawn(pending());
        assert_eq!(first_end(ready(()), &mut tasks).await, None);
        tasks.spawn(fails());
        let why = first_end(pending(), &mut tasks).await;
        assert!(why.as_ref().is_some_and(|why| why.contains("panicked")), "{why:?}");
        tasks.spawn(ready(()));
        assert_eq!(first_end(pending(), &mut tasks).await.as_deref(), Some("the task returned"));
    }
}

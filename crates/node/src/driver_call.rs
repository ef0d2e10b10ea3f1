//! Calls of the driver from async tasks, with a deadline. A driver call that hangs can't be interrupted: its thread stays behind, and until it
//! returns there is no second one.

use std::time::Duration;

use tokio::task::JoinHandle;

/// Longer than any call of a driver that works.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// The calls of one task.
#[derive(Debug, Default)]
pub(crate) struct DriverCall {
    /// A call that took too long, and may not have returned yet.
    late: Option<JoinHandle<()>>,
}

impl DriverCall {
    /// Runs `call` on a thread of its own. The error says that the driver does not answer.
    pub(crate) async fn run<T: Send + 'static>(
        &mut self,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        if self.late.as_ref().is_some_and(|late| !late.is_finished()) {
            return Err(
                "the GPU driver has not answered an earlier call yet; look for NVRM lines in dmesg on the node"
                    .to_owned(),
            );
        }
        self.late = None;
        let (sender, answer) = tokio::sync::oneshot::channel();
        let running = tokio::task::spawn_blocking(move || {
            // Nobody waits for an answer after the deadline.
            let _ = sender.send(call());
        });
        match tokio::time::timeout(ANSWER_MAX, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err("the call of the GPU driver ended without an answer".to_owned()),
            Err(_) => {
                self.late = Some(running);
                Err(format!(
                    "the GPU driver did not answer within {} seconds; look for NVRM lines in dmesg on the node",
                    ANSWER_MAX.as_secs()
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_that_hangs_is_given_up_and_not_repeated() {
        let mut calls = DriverCall::default();
        assert_eq!(calls.run(|| 5).await, Ok(5));
        let (release, released) = std::sync::mpsc::channel::<()>();
        let (asked, is_asked) = std::sync::mpsc::channel();
        let hang = move || {
            asked.send(()).unwrap();
            let _ = released.recv();
        };
        // The paused clock stands still while a blocking call runs, so time is advanced by hand.
        let advance = async {
            while is_asked.try_recv().is_err() {
                tokio::task::yield_now().await;
            }
            tokio::time::advance(ANSWER_MAX).await;
        };
        let (answer, ()) = tokio::join!(calls.run(hang), advance);
        assert!(answer.unwrap_err().contains("within 10 seconds"));
        let refusal = calls.run(|| panic!("the driver is asked once")).await;
        assert!(refusal.unwrap_err().contains("earlier call"));
        drop(release);
        while calls.late.as_ref().is_some_and(|late| !late.is_finished()) {
            tokio::task::yield_now().await;
        }
        assert_eq!(calls.run(|| 6).await, Ok(6));
    }
}

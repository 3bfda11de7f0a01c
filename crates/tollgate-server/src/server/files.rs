//! Reads files beside everything else.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{task::spawn_blocking, time::timeout};

/// How long the files of a configuration may take. Far longer than those of the largest one need.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Reads files on a thread that may block, one reading at a time: a file system that does not answer
/// holds one thread, and neither connections nor signals nor decisions wait for it.
#[derive(Debug, Default)]
pub(super) struct FileReader {
    is_busy: Arc<AtomicBool>,
}

/// Ends a reading, also if it panics.
struct Reading(Arc<AtomicBool>);

impl Drop for Reading {
    fn drop(&mut self) {
        // ORDERING: Relaxed, here and below. The flag only keeps a second thread from starting; the
        // task hands the result over.
        self.0.store(false, Relaxed);
    }
}

impl FileReader {
    /// Tells whether a reading is under way, also one that nobody waits for any more.
    pub(super) fn is_busy(&self) -> bool {
        self.is_busy.load(Relaxed)
    }

    /// Runs `read`, and waits for it for up to 30 seconds.
    ///
    /// # Errors
    ///
    /// When an earlier reading has not ended, or this one takes longer. It goes on then, unheard.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        if self.is_busy.swap(true, Relaxed) {
            let text = "the previous read of the configuration files has not finished; check for a \
                        file system that does not respond";
            return Err(text.to_owned());
        }
        let reading = Reading(Arc::clone(&self.is_busy));
        let done = spawn_blocking(move || {
            let _reading = reading;
            read()
        });
        match timeout(READ_TIMEOUT, done).await {
            Ok(done) => done.map_err(|error| error.to_string()),
            Err(_) => Err(format!(
                "the configuration files were not read within {READ_TIMEOUT:?}; check for a file \
                 system that does not respond"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[tokio::test]
    async fn a_reading_that_blocks_holds_one_thread_and_others_are_refused() {
        let reader = FileReader::default();
        let (end, ended) = mpsc::channel::<()>();
        let stuck = reader.run(move || ended.recv().is_ok());
        // Nobody waits for it any more.
        assert!(timeout(Duration::from_millis(1), stuck).await.is_err());
        assert!(reader.is_busy());
        let refused = reader.run(|| ()).await.unwrap_err();
        assert!(refused.contains("has not finished"), "{refused}");
        end.send(()).unwrap();
        while reader.is_busy() {
            tokio::task::yield_now().await;
        }
        assert_eq!(reader.run(|| 7).await, Ok(7));
    }
}

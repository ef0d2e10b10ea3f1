//! Why the scheduler can't start or go on.

/// Why the scheduler can't start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration file can't be used.
    #[error("reading the configuration {path}: {message}")]
    Config {
        /// The file.
        path: String,
        /// What is wrong with it, with the remedy.
        message: String,
    },
    /// A flag has an invalid value.
    #[error("flag --{flag}: {message}")]
    Flag {
        /// The flag's name.
        flag: &'static str,
        /// What is wrong with it, with the remedy.
        message: String,
    },
    /// The API server rejects our credentials. A restarted pod gets a new token.
    #[error("the api server no longer accepts our credentials; restart to get new ones ({0})")]
    Unauthorized(kai_cluster::Error),
}

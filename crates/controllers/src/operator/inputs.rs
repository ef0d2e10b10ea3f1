//! What a plan depends on, apart from the Config and the shards.

/// The installation that the operator belongs to, and the process that runs the roles.
#[derive(Clone, Debug)]
pub struct Installation {
    /// Namespace of the installation.
    pub namespace: String,
    /// Image of kai.
    pub image: ImageReference,
    /// Pull policy of the image.
    pub pull_policy: String,
    /// Image pull secrets besides those of the Config.
    pub pull_secrets: Vec<String>,
    /// Where the roles run.
    pub runner: Runner,
}

/// An image as registry path, name and tag, each of which a Config may replace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageReference {
    /// Registry and path, without the name.
    pub repository: String,
    /// The last segment of the path.
    pub name: String,
    /// Tag, or a digest with its algorithm.
    pub tag: String,
}

impl std::str::FromStr for ImageReference {
    type Err = String;

    fn from_str(text: &str) -> Result<ImageReference, String> {
        let remedy = || format!("{text:?} is no image; write REGISTRY/PATH/NAME:TAG");
        let (repository, rest) = text.rsplit_once('/').ok_or_else(remedy)?;
        let (name, tag) = rest.split_once([':', '@']).ok_or_else(remedy)?;
        if [repository, name, tag].contains(&"") {
            return Err(remedy());
        }
        let (repository, name, tag) = (repository.to_owned(), name.to_owned(), tag.to_owned());
        Ok(ImageReference { repository, name, tag })
    }
}

impl std::fmt::Display for ImageReference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let separator = if self.tag.starts_with("sha256:") { '@' } else { ':' };
        write!(f, "{}/{}{separator}{}", self.repository, self.name, self.tag)
    }
}

/// Where the roles run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runner {
    /// In Deployments that the operator creates.
    Deployments,
    /// In the process that makes the plan: `kai all`.
    Process,
}

/// What the plan has to know about the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterFacts {
    /// Whether the API server serves VerticalPodAutoscalers.
    pub serves_vpa: bool,
    /// Whether the GPU operator's ClusterPolicy says that its device plugin uses CDI devices.
    pub gpu_operator_cdi: bool,
}

/// The flags and the configuration file that `kai scheduler` accepts. A trait, because no role imports another role: the program knows
/// both.
pub trait SchedulerFlags: Send + Sync {
    /// Whether the scheduler has this flag.
    fn is_known(&self, name: &str) -> bool;

    /// The warnings of a scheduler with these flags and this configuration file, or the reason why it would not start.
    fn check(&self, flags: &[String], config: &str) -> Result<Vec<String>, String>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_repository_name_and_tag() {
        for text in ["registry/local/kai-scheduler/kai:0.0.0", "host:5000/kai@sha256:0a"] {
            assert_eq!(text.parse::<ImageReference>().unwrap().to_string(), text);
        }
        for text in ["kai", "kai:1", "a/kai", "a/kai:", "/kai:1"] {
            assert!(text.parse::<ImageReference>().is_err(), "{text}");
        }
    }
}

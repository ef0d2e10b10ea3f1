//! Command-line flags by name. A later value of a name replaces the earlier one: clap refuses a flag that occurs twice.

/// Flags in the order of their first value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags(Vec<(String, String)>);

impl Flags {
    /// Sets a flag.
    pub fn set(&mut self, name: &str, value: impl ToString) {
        let value = value.to_string();
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }

    /// Sets a flag if there is a value.
    pub fn set_some(&mut self, name: &str, value: Option<impl ToString>) {
        if let Some(value) = value {
            self.set(name, value);
        }
    }

    /// The value of a flag.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Names and values.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The flags as arguments: `--name=value`.
    pub fn arguments(&self) -> Vec<String> {
        let argument = |(name, value): &(String, String)| format!("--{name}={value}");
        self.0.iter().map(argument).collect()
    }
}

//! The Go types of the Kubernetes API with their fields, by JSON name and by protobuf number. `.ci/kubernetes/apitypes` writes the table
//! `table.txt`. `decode` reads JSON by it, `check` checks manifests, `http::protobuf` reads protobuf.

pub(in crate::server) mod check;
mod decode;
pub(crate) mod quantity;
mod scalar;

use std::collections::HashMap;
use std::sync::OnceLock;

pub(crate) use decode::{Decoded, complete, decode, decode_at};
pub(in crate::server) use scalar::is_empty;

const TABLE: &str = include_str!("table.txt");
/// The type of every object's metadata.
pub(crate) const OBJECT_META: &str = "meta.v1.ObjectMeta";

/// All types.
pub(crate) struct Types {
    /// Type names by `apiVersion` and `kind`.
    kinds: HashMap<(&'static str, &'static str), &'static str>,
    types: HashMap<&'static str, Type>,
}

/// One Go struct.
#[derive(Debug, Default)]
pub(crate) struct Type {
    /// Fields by JSON name, without those of inlined types.
    by_name: HashMap<&'static str, Field>,
    by_number: HashMap<u64, Field>,
    /// Names of inlined types.
    inlined: Vec<&'static str>,
}

/// One field of a type.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    /// JSON name; `=` for an inlined type.
    pub(crate) name: &'static str,
    pub(crate) of: FieldType,
    /// Whether Go writes an empty value: the field has no `omitempty`.
    pub(crate) always_written: bool,
}

/// The type of a field.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FieldType {
    /// Whether the field is a pointer, so that an empty value differs from a missing one.
    pub(crate) pointer: bool,
    pub(crate) form: Form,
    /// The type of the field or of its items: a scalar or a type of the table.
    pub(crate) base: &'static str,
    /// Go's name of the type, if it does not follow from `base` and `form`.
    go_name: Option<&'static str>,
}

/// Whether a field is a single value, a list or a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    One,
    List,
    Map,
}

impl Types {
    /// The type of a kind.
    pub(crate) fn of_kind(&self, api_version: &str, kind: &str) -> Option<&'static str> {
        self.kinds.get(&(api_version, kind)).copied()
    }

    /// A type by its name in the table.
    pub(crate) fn get(&self, name: &str) -> Option<&Type> {
        self.types.get(name)
    }

    /// A field by its JSON name, inlined types included.
    pub(crate) fn field(&self, of_type: &Type, name: &str) -> Option<Field> {
        let own = of_type.by_name.get(name).copied();
        own.or_else(|| {
            let mut inlined = of_type.inlined.iter().filter_map(|inner| self.get(inner));
            inlined.find_map(|inner| self.field(inner, name))
        })
    }

    /// The fields that Go always writes, inlined types included.
    fn always_written(&self, of_type: &Type) -> Vec<Field> {
        let own = of_type.by_name.values().filter(|field| field.always_written).copied();
        let inlined = of_type.inlined.iter().filter_map(|inner| self.get(inner));
        own.chain(inlined.flat_map(|inner| self.always_written(inner)))
            .collect()
    }
}

impl Type {
    pub(crate) fn by_number(&self, number: u64) -> Option<Field> {
        self.by_number.get(&number).copied()
    }
}

impl FieldType {
    fn parse(text: &'static str) -> Self {
        let (text, go_name) = match text.split_once('=') {
            Some((text, name)) => (text, Some(name)),
            None => (text, None),
        };
        let (pointer, text) = text.strip_prefix('*').map_or((false, text), |rest| (true, rest));
        let (form, base) = match (text.strip_prefix("[]"), text.strip_prefix("{}")) {
            (Some(item), _) => (Form::List, item),
            (_, Some(item)) => (Form::Map, item),
            _ => (Form::One, text),
        };
        Self {
            pointer,
            form,
            base: base.trim_start_matches('*'),
            go_name,
        }
    }

    /// A type of the table, as a field type.
    fn parse_name(name: &str) -> Self {
        let base = types().types.get_key_value(name).map_or("", |(name, _)| *name);
        Self::parse(base)
    }

    /// The type of the items.
    pub(crate) fn item(self) -> Self {
        // Go's name applies to the items only for a list of named strings.
        let go_name = self
            .go_name
            .filter(|_| self.form == Form::List && self.base == "string");
        Self {
            pointer: false,
            form: Form::One,
            go_name,
            ..self
        }
    }

    /// The type's name in Go's messages.
    fn go_name(self) -> String {
        let base = || match self.base {
            "bytes" => "[]uint8".to_owned(),
            // `core.v1.Pod` is `v1.Pod` in Go.
            name => name.split_once('.').map_or(name, |(_, rest)| rest).to_owned(),
        };
        match (self.form, self.go_name) {
            (Form::One, Some(name)) => name.to_owned(),
            (Form::One, None) => base(),
            (Form::List, Some(name)) if self.base == "string" => format!("[]{name}"),
            (Form::List | Form::Map, Some(name)) => name.to_owned(),
            (Form::List, None) => format!("[]{}", base()),
            (Form::Map, None) => format!("map[string]{}", base()),
        }
    }
}

/// The table.
pub(crate) fn types() -> &'static Types {
    static TYPES: OnceLock<Types> = OnceLock::new();
    TYPES.get_or_init(|| {
        let mut types = Types {
            kinds: HashMap::new(),
            types: HashMap::new(),
        };
        let mut current = "";
        for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
            match line.split(' ').collect::<Vec<_>>().as_slice() {
                [":", api_version, kind, name] => {
                    types.kinds.insert((api_version, kind), name);
                }
                [number, name, of_type, ..] => {
                    let number = number.parse().expect("the table's numbers are numbers");
                    types.types.entry(current).or_default().add(number, name, of_type);
                }
                [name] => {
                    current = name;
                    types.types.entry(name).or_default();
                }
                _ => unreachable!("the table has no lines of two words"),
            }
        }
        types
    })
}

impl Type {
    fn add(&mut self, number: u64, name: &'static str, of_type: &'static str) {
        let of = FieldType::parse(of_type);
        let field = Field {
            name: name.trim_end_matches('!'),
            of,
            always_written: name.ends_with('!'),
        };
        if name == "=" {
            self.inlined.push(of.base);
        } else {
            self.by_name.insert(field.name, field);
        }
        if number > 0 {
            self.by_number.insert(number, field);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::kinds::Kinds;

    #[test]
    fn the_table_knows_every_kind_that_is_served() {
        for kind in Kinds::built_in().iter() {
            assert!(
                types().of_kind(&kind.api_version(), &kind.kind).is_some(),
                "{} {}",
                kind.api_version(),
                kind.kind
            );
        }
    }

    #[test]
    fn every_type_in_the_table_is_known() {
        for (name, of_type) in &types().types {
            for field in of_type.by_name.values().chain(of_type.by_number.values()) {
                let base = field.of.base;
                assert!(
                    scalar::is_scalar(base) || types().get(base).is_some(),
                    "{name}.{}: {base}",
                    field.name
                );
            }
        }
        assert!(types().kinds.values().all(|name| types().get(name).is_some()));
    }

    #[test]
    fn names_in_go() {
        let named = |of_type: &str, field: &str| {
            let of_type = types().get(of_type).unwrap();
            types().field(of_type, field).unwrap().of.go_name()
        };
        assert_eq!(named("core.v1.PodSpec", "containers"), "[]v1.Container");
        assert_eq!(named("core.v1.PodSpec", "restartPolicy"), "v1.RestartPolicy");
        assert_eq!(named("core.v1.ResourceRequirements", "limits"), "v1.ResourceList");
        assert_eq!(named("core.v1.PodSpec", "nodeSelector"), "map[string]string");
        assert_eq!(named("core.v1.Secret", "data"), "map[string][]uint8");
        // A field of an inlined type.
        assert_eq!(named("core.v1.Volume", "emptyDir"), "v1.EmptyDirVolumeSource");
    }
}

//! JSON whose objects keep the order of their members, and members with the same name: in rt-app both have a
//! meaning.

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use std::fmt;

/// A JSON value.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Integer(i64),
    Number(f64),
    Text(String),
    Array(Vec<Value>),
    Object(#[serde(deserialize_with = "members")] Vec<(String, Value)>),
}

impl Value {
    /// What it is, for a message.
    pub(super) fn kind(&self) -> String {
        match self {
            Value::Null => "null".to_owned(),
            Value::Bool(value) => value.to_string(),
            Value::Integer(value) => value.to_string(),
            Value::Number(value) => value.to_string(),
            Value::Text(text) => format!("{text:?}"),
            Value::Array(_) => "an array".to_owned(),
            Value::Object(_) => "an object".to_owned(),
        }
    }
}

/// As they stand there.
fn members<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, Value)>, D::Error> {
    struct Members;

    impl<'de> Visitor<'de> for Members {
        type Value = Vec<(String, Value)>;

        fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            out.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
            std::iter::from_fn(|| members.next_entry().transpose()).collect()
        }
    }

    deserializer.deserialize_map(Members)
}

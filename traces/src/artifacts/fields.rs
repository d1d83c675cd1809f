//! A JSON object with its keys in the order of the file, duplicates included.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

/// Keys and values of one object as they stand in its file.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Fields(Vec<(String, Value)>);

impl Fields {
    /// Keys in the order of the file.
    pub(super) fn keys(&self) -> Vec<String> {
        self.0.iter().map(|(key, _)| key.clone()).collect()
    }

    /// True where the object has `key`, whatever its value.
    pub(super) fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// A key that stands more than once.
    pub(super) fn twice(&self) -> Option<&str> {
        let mut rest = self.0.as_slice();
        while let Some(((key, _), tail)) = rest.split_first() {
            if tail.iter().any(|(other, _)| other == key) {
                return Some(key);
            }
            rest = tail;
        }
        None
    }

    /// Value of `key`.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// A string that must be there.
    pub(super) fn text(&self, key: &str) -> Result<String, String> {
        match self.get(key) {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(_) => Err(format!("`{key}` is no string")),
            None => Err(format!("the object has no `{key}`")),
        }
    }

    /// A string; `None` where the key is absent or null.
    pub(super) fn optional_text(&self, key: &str) -> Result<Option<String>, String> {
        if self.absent(key) { Ok(None) } else { self.text(key).map(Some) }
    }

    /// A whole number; `None` where the key is absent or null.
    pub(super) fn optional_count(&self, key: &str) -> Result<Option<u64>, String> {
        if self.absent(key) {
            return Ok(None);
        }
        let count = self.get(key).and_then(Value::as_u64);
        count.map(Some).ok_or_else(|| format!("`{key}` is no whole number from 0"))
    }

    /// A whole number that may be negative; `None` where the key is absent or null.
    pub(super) fn optional_integer(&self, key: &str) -> Result<Option<i64>, String> {
        if self.absent(key) {
            return Ok(None);
        }
        let number = self.get(key).and_then(Value::as_i64);
        number.map(Some).ok_or_else(|| format!("`{key}` is no whole number"))
    }

    /// A number; `None` where the key is absent, null or a word for a number that is not finite.
    pub(super) fn optional_number(&self, key: &str) -> Result<Option<f64>, String> {
        if self.absent(key) {
            return Ok(None);
        }
        let number = self.get(key).and_then(Value::as_f64);
        number.map(Some).ok_or_else(|| format!("`{key}` is no number"))
    }

    /// True or false; `None` where the key is absent or null.
    pub(super) fn optional_flag(&self, key: &str) -> Result<Option<bool>, String> {
        if self.absent(key) {
            return Ok(None);
        }
        let flag = self.get(key).and_then(Value::as_bool);
        flag.map(Some).ok_or_else(|| format!("`{key}` is neither true nor false"))
    }

    /// Token ids; `None` where the key is absent or null.
    pub(super) fn optional_ids(&self, key: &str) -> Result<Option<Vec<u32>>, String> {
        if self.absent(key) {
            return Ok(None);
        }
        let Some(Value::Array(values)) = self.get(key) else {
            return Err(format!("`{key}` is no list"));
        };
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids: Option<Vec<u32>> = values.iter().map(id).collect();
        ids.map(Some).ok_or_else(|| format!("`{key}` holds something that is no token id"))
    }

    fn absent(&self, key: &str) -> bool {
        matches!(self.get(key), None | Some(Value::Null))
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Fields(pairs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Fields {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn keys_keep_their_order_and_a_second_one_is_found() {
        let row = fields(r#"{"b":1,"a":"x","c":null}"#);
        assert_eq!(row.keys(), ["b", "a", "c"]);
        assert_eq!(row.twice(), None);
        assert!(row.has("c") && !row.has("d"));
        assert_eq!(fields(r#"{"b":1,"a":2,"b":3}"#).twice(), Some("b"));
    }

    #[test]
    fn wrong_types_are_named_and_null_is_absent() {
        let row = fields(r#"{"n":-1,"s":"x","ids":[1,-2],"ok":[1,2],"z":null,"f":1.5,"t":true}"#);
        assert_eq!(row.text("n"), Err("`n` is no string".to_owned()));
        assert_eq!(row.text("q"), Err("the object has no `q`".to_owned()));
        assert_eq!(row.optional_count("n"), Err("`n` is no whole number from 0".to_owned()));
        assert_eq!(row.optional_integer("n"), Ok(Some(-1)));
        assert_eq!(row.optional_count("z"), Ok(None));
        assert_eq!(row.optional_number("f"), Ok(Some(1.5)));
        assert_eq!(row.optional_flag("t"), Ok(Some(true)));
        assert_eq!(row.optional_ids("ok"), Ok(Some(vec![1, 2])));
        assert!(row.optional_ids("ids").is_err());
    }
}

//! Structs of few fields: one with many belongs to several owners.

use syn::visit::{self, Visit};
use syn::{Attribute, ItemStruct, Meta};

use super::{assert_none, sources, tops};

/// Maximum number of fields, except for what is written to or read from a document or a command line.
const MAX_FIELDS: usize = 20;

/// Derived traits of what is written or read as it is.
const DOCUMENTS: [&str; 4] = ["Serialize", "Deserialize", "Args", "Parser"];

fn is_document(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("derive") => {
            let derived = list.tokens.to_string();
            DOCUMENTS
                .iter()
                .any(|name| derived.split([',', ' ', ':']).any(|word| word == *name))
        }
        Meta::List(_) | Meta::Path(_) | Meta::NameValue(_) => false,
    })
}

/// Structs with more than [`MAX_FIELDS`] fields.
#[derive(Default)]
struct Large(Vec<String>);

impl<'ast> Visit<'ast> for Large {
    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        if item.fields.len() > MAX_FIELDS && !is_document(&item.attrs) {
            self.0.push(format!("{}: {}", item.ident, item.fields.len()));
        }
        visit::visit_item_struct(self, item);
    }
}

/// No struct has more than [`MAX_FIELDS`] fields.
#[test]
fn structs_have_few_fields() {
    let mut large = Large::default();
    for directory in tops() {
        for file in sources(&directory, &["rs"]) {
            if let Ok(parsed) = syn::parse_file(&file.text) {
                large.visit_file(&parsed);
            }
        }
    }
    assert_none(&large.0, "structs of more than 20 fields");
}

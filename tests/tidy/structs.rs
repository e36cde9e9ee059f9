//! Structs of few fields: one with many belongs to several owners.

use syn::visit::{self, Visit};
use syn::{Attribute, ItemStruct, Meta};

use super::{assert_none, sources, tops};

/// Maximum number of fields, except for what is written to or read from a document or a command line.
const MAX_FIELDS: usize = 20;

/// Larger structs, and their number of fields. They may shrink, and then the number here, too.
const LARGER: [(&str, usize); 1] = [("Sample", 24)];

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
struct Large(Vec<(String, usize)>);

impl<'ast> Visit<'ast> for Large {
    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        if item.fields.len() > MAX_FIELDS && !is_document(&item.attrs) {
            self.0.push((item.ident.to_string(), item.fields.len()));
        }
        visit::visit_item_struct(self, item);
    }
}

/// No struct has more than [`MAX_FIELDS`] fields, but for those of [`LARGER`].
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
    let known = |(name, fields): &(String, usize)| LARGER.contains(&(name.as_str(), *fields));
    let unknown = large.0.iter().filter(|large| !known(large));
    let unknown: Vec<_> = unknown
        .map(|(name, fields)| format!("{name}: {fields}"))
        .collect();
    assert_none(&unknown, "structs of more than 20 fields");
    assert_eq!(
        large.0.len(),
        LARGER.len(),
        "{:?}: write down which are left",
        large.0
    );
}

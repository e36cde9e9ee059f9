// Source for rustc to compile: collections, iterators, closures.
use std::collections::{BTreeMap, HashMap};

pub fn lengths(text: &str) -> HashMap<String, usize> {
    text.split(' ').map(|word| (word.to_owned(), word.len())).collect()
}

pub fn sort(maps: &mut [BTreeMap<u8, String>]) {
    maps.sort_by_key(BTreeMap::len);
    for map in maps.iter_mut() {
        map.retain(|key, text| *key > 3 && text.len() > 2);
    }
}

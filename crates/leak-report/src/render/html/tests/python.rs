//! Functions of Python on the page.

use super::*;

/// Functions of Python are in an entry of their own among the modules, and have no address.
#[test]
fn functions_of_python_have_no_module() {
    let mut page = Page::default();
    page.add(&samples::python::python());
    let data = data_of(&page);
    let text = |number: &Value| data["strings"][usize::try_from(number.as_u64().unwrap()).unwrap()].clone();
    let modules = data["modules"].as_array().unwrap();
    let python = modules
        .iter()
        .position(|module| text(&module[0]) == "[python]")
        .unwrap();
    let frames = data["frames"].as_array().unwrap().iter();
    let found: Vec<_> = frames
        .filter(|frame| frame["found_by"] == FoundBy::Python as u32)
        .map(|frame| {
            (
                frame["module"] == python,
                frame["address"].clone(),
                text(&frame["function"]),
                text(&frame["file"]),
                frame["line"].clone(),
            )
        })
        .collect();
    assert_eq!(found.len(), 4);
    assert!(
        found
            .iter()
            .all(|(is_python, address, ..)| *is_python && address == "0"),
        "{found:?}"
    );
    let fetch_rows = (
        true,
        "0".into(),
        "fetch_rows".into(),
        "/opt/app/db.py".into(),
        118.into(),
    );
    assert!(found.contains(&fetch_rows), "{found:?}");
    assert!(
        found
            .iter()
            .any(|(_, _, name, file, _)| name == "<python function>" && file == "")
    );
    let line = data["health"]["python"][0].as_str().unwrap();
    assert!(line.starts_with("88 functions; allocations: 32"), "{line}");
}

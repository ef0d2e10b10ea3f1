//! The engine depends on two small crates and on no other crate of the workspace, which keeps it pure.

#[test]
fn the_engine_depends_on_two_small_crates() {
    let manifest = include_str!("../Cargo.toml");
    let section = manifest.split("[dependencies]").nth(1).unwrap();
    let section = section.split("\n[").next().unwrap();
    let names: Vec<&str> = section
        .lines()
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .collect();
    let names: Vec<&str> = names.into_iter().filter(|name| !name.is_empty()).collect();
    assert_eq!(names, ["rustc-hash", "smallvec"]);
}

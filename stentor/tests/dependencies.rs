//! What came into the build, checked against `deny.toml` without another tool: the licences and the sources.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use cargo_metadata::{Metadata, MetadataCommand, Package};
use spdx::{Expression, ParseMode};

fn metadata() -> Metadata {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    // Only what is built here: what other platforms would need is not even fetched.
    let only_here = ["--locked", "--filter-platform", "x86_64-unknown-linux-gnu"].map(str::to_owned);
    MetadataCommand::new().manifest_path(manifest).other_options(only_here.to_vec()).exec().unwrap()
}

fn deny() -> toml::Table {
    include_str!("../../deny.toml").parse().unwrap()
}

fn foreign(metadata: &Metadata) -> impl Iterator<Item = &Package> {
    metadata.packages.iter().filter(|package| !metadata.workspace_members.contains(&package.id))
}

fn strings(table: &toml::Table, section: &str, key: &str) -> Vec<String> {
    let values = table[section][key].as_array().unwrap();
    values.iter().map(|value| value.as_str().unwrap().to_owned()).collect()
}

#[test]
fn every_dependency_has_a_licence_that_is_allowed() {
    let allowed = strings(&deny(), "licenses", "allow");
    let metadata = metadata();
    for package in foreign(&metadata) {
        let licence = package.license.as_deref().unwrap_or_else(|| panic!("{} states no licence", package.name));
        let expression = Expression::parse_mode(licence, ParseMode::LAX).unwrap();
        let met = expression.evaluate(|requirement| allowed.contains(&requirement.to_string()));
        assert!(met, "{} is under {licence}, which deny.toml does not allow", package.name);
    }
}

#[test]
fn every_dependency_comes_from_the_registry_that_is_allowed() {
    let allowed: Vec<String> =
        strings(&deny(), "sources", "allow-registry").iter().map(|registry| format!("registry+{registry}")).collect();
    let metadata = metadata();
    for package in foreign(&metadata) {
        let source = package.source.as_ref().map(ToString::to_string);
        let known = source.as_ref().is_some_and(|source| allowed.contains(source));
        assert!(known, "{} comes from {source:?}, which deny.toml does not allow", package.name);
    }
}

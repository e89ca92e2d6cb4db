//! The map of the design, checked: which package may know which.
//!
//! ```text
//! run     stentor   benches   sim
//! logic   broker    cluster   client
//! wire    protocol
//! plugs   storage-*   transport-*   (conformance: for tests)
//! base    core
//! ```
//!
//! Arrows only point down, and only the run row names a plug, but for `client`, which has QUIC behind its default
//! feature. Tests of a package may use what lies beside it: development dependencies are not arrows of the map.

use std::collections::BTreeMap;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

const CORE: &str = "stentor-core";
const PROTOCOL: &str = "stentor-protocol";

/// The packages of the run row, which may know everything.
const RUN: &[&str] = &["stentor", "stentor-benches", "stentor-sim"];

/// What a package outside the run row may know of the workspace; `Err` for one that the map does not have.
fn allowed(package: &str) -> Result<&'static [&'static str], String> {
    match package {
        CORE => Ok(&[]),
        PROTOCOL | "stentor-conformance" => Ok(&[CORE]),
        "stentor-broker" | "stentor-cluster" => Ok(&[CORE, PROTOCOL]),
        "stentor-client" => Ok(&[CORE, PROTOCOL, "stentor-transport-quic"]),
        _ if is_plug(package) => Ok(&[CORE]),
        _ => Err(format!("{package} is not on the map: give it its place in tests/layers.rs and ARCHITECTURE.md")),
    }
}

fn is_plug(package: &str) -> bool {
    package.starts_with("stentor-storage-") || package.starts_with("stentor-transport-")
}

#[expect(clippy::unwrap_used, reason = "without the metadata there is no test")]
fn metadata() -> Metadata {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    MetadataCommand::new().manifest_path(manifest).no_deps().other_options(vec!["--offline".to_owned()]).exec().unwrap()
}

/// Every package of the workspace, with the ones of the workspace that it depends on, and whether that is optional.
fn arrows(metadata: &Metadata) -> BTreeMap<String, Vec<(String, bool)>> {
    let members: Vec<String> = metadata.packages.iter().map(|package| package.name.to_string()).collect();
    let arrows = metadata.packages.iter().map(|package| {
        let known = package
            .dependencies
            .iter()
            .filter(|dependency| dependency.kind != DependencyKind::Development && members.contains(&dependency.name))
            .map(|dependency| (dependency.name.clone(), dependency.optional))
            .collect();
        (package.name.to_string(), known)
    });
    arrows.collect()
}

#[test]
fn arrows_of_the_workspace_only_point_down() {
    let arrows = arrows(&metadata());
    assert!(arrows.len() >= 11, "the workspace has lost packages: {:?}", arrows.keys());
    for (package, known) in arrows.iter().filter(|(package, _)| !RUN.contains(&package.as_str())) {
        let allowed = allowed(package).unwrap();
        for (other, _) in known {
            assert!(allowed.contains(&other.as_str()), "{package} may not know {other}: only {allowed:?}");
        }
    }
}

#[test]
fn the_client_has_quic_as_an_option_only() {
    let metadata = metadata();
    let arrows = arrows(&metadata);
    assert!(arrows["stentor-client"].contains(&("stentor-transport-quic".to_owned(), true)));
    let client = metadata.packages.iter().find(|package| package.name.as_str() == "stentor-client").unwrap();
    assert_eq!(client.features["default"], ["quic"]);
}

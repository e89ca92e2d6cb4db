//! Compiles the `.proto` file with a compiler that is a crate, so that no `protoc` is needed on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/stentor.proto");
    let descriptors = protox::compile(["proto/stentor.proto"], ["proto"])?;
    prost_build::Config::new().bytes(["."]).btree_map(["."]).compile_fds(descriptors)?;
    Ok(())
}

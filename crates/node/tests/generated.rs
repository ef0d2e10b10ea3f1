//! Holds the committed gRPC code to the `.proto` files next to it. `KAI_REGENERATE=1 cargo test -p kai-node --test generated`
//! rewrites it. It never runs as a build script: a build needs neither protoc nor protox.

use std::fs;
use std::path::Path;

#[test]
fn committed_grpc_code_is_what_the_protos_generate() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let protos = root.join("proto");
    let descriptors =
        protox::compile(["deviceplugin.proto", "podresources.proto"], [&protos]).expect("the protos compile");
    let out = tempfile::tempdir().expect("a temporary directory");
    tonic_prost_build::configure()
        .out_dir(out.path())
        .btree_map(".")
        .compile_fds(descriptors)
        .expect("code generation");

    for name in ["v1beta1.rs", "v1.rs"] {
        let fresh = fs::read_to_string(out.path().join(name)).expect("a generated file");
        let committed = root.join("src/generated").join(name);
        if std::env::var_os("KAI_REGENERATE").is_some() {
            fs::write(&committed, &fresh).expect("write generated code");
        }
        let found = fs::read_to_string(&committed).unwrap_or_default();
        assert!(
            found == fresh,
            "src/generated/{name} is stale: run with KAI_REGENERATE=1"
        );
    }
}

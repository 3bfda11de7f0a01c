//! The compiled form of the protocol's description is what the files say.

use prost::Message;
use std::path::Path;

#[test]
fn the_compiled_description_is_current() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let compiler = protox::Compiler::new([&folder])
        .unwrap()
        .include_imports(true)
        .open_file("envoy/service/ratelimit/v3/rls.proto")
        .map(|compiler| compiler.file_descriptor_set())
        .unwrap();
    let bytes = compiler.encode_to_vec();
    let path = folder.join("rls.bin");
    if std::env::var_os("TOLLGATE_WRITE").is_some() {
        std::fs::write(&path, &bytes).unwrap();
    }
    assert!(
        std::fs::read(&path).unwrap() == bytes,
        "proto/rls.bin is not what proto/envoy says; write it anew with \
         TOLLGATE_WRITE=1 cargo test -p tollgate-server --test protocols rls_proto"
    );
}

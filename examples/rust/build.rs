// SPDX-License-Identifier: Apache-2.0
//
// build.rs - OUT_DIR/attn_sys.rs: attn.h as bindgen translates it, and the flags to link libattn,
// from pkg-config.

use std::{env, path::Path, process::Command};

fn pkg_config(what: &str) -> Vec<String> {
    let output = Command::new("pkg-config").args([what, "attn"]).output().expect("pkg-config");
    assert!(output.status.success(), "pkg-config knows no attn; set PKG_CONFIG_PATH");
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().map(String::from).collect()
}

fn main() {
    let folder = pkg_config("--variable=includedir").remove(0);
    let bindings = Path::new(&env::var("OUT_DIR").unwrap()).join("attn_sys.rs");
    let status = Command::new("bindgen")
        .arg(Path::new(&folder).join("attn.h"))
        .args(["--allowlist-function", "attn_.*", "--allowlist-var", "ATTN_.*"])
        .args(["--no-layout-tests", "--output"])
        .arg(bindings)
        .status()
        .expect("bindgen (Debian: apt install bindgen)");
    assert!(status.success());
    for flag in pkg_config("--libs") {
        if let Some(folder) = flag.strip_prefix("-L") {
            println!("cargo:rustc-link-search={folder}");
            println!("cargo:rustc-link-arg=-Wl,-rpath,{folder}");
        } else if let Some(library) = flag.strip_prefix("-l") {
            println!("cargo:rustc-link-lib={library}");
        }
    }
    println!("cargo:rerun-if-changed=build.rs");
}

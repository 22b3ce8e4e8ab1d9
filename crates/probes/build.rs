//! Compiles the BPF programs and generates their Rust skeleton.

use std::{
    env,
    path::PathBuf,
    process::{Command, Stdio},
};

/// What listens, to any kernel and to KVM, the meter of reservations, and the scheduler, which only some
/// kernels can load: an object each.
const OBJECTS: [&str; 4] = ["frontdesk", "kvm", "reserve", "scx"];
/// Distributions install clang under its plain name, under a name with its version, or both.
const VERSIONS: std::ops::RangeInclusive<u32> = 14..=24;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR for build scripts"));
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-env-changed=CLANG");
    let clang = clang();
    for object in OBJECTS {
        let source = format!("bpf/{object}.bpf.c");
        libbpf_cargo::SkeletonBuilder::new()
            .source(&source)
            .clang(&clang)
            .clang_args(["-I", "bpf", "-Wall", "-Werror", "-mcpu=v3"])
            .build_and_generate(out.join(format!("{object}.skel.rs")))
            .unwrap_or_else(|e| {
                panic!("cannot build {source} (needs clang, libelf-dev and zlib1g-dev): {e:#}")
            });
    }
}

/// The compiler: what the variable CLANG names, else `clang`, else the newest `clang-VERSION`.
fn clang() -> String {
    if let Ok(named) = env::var("CLANG") {
        return named;
    }
    let runs = |name: &String| {
        Command::new(name)
            .arg("--version")
            .stdout(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    std::iter::once("clang".to_owned())
        .chain(VERSIONS.rev().map(|version| format!("clang-{version}")))
        .find(runs)
        .unwrap_or_else(|| {
            panic!(
                "no clang on the PATH to build the BPF programs; install it or name one in the variable CLANG"
            )
        })
}

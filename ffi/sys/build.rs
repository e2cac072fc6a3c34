//! Finds libdpdk with pkg-config, generates its bindings with bindgen, compiles wrappers of its static inline functions
//! with cc, and emits the link options. Only the names listed below are bound; all of them exist in 22.11, 23.11 and
//! 24.11.

use std::path::PathBuf;
use std::process::Command;
use std::{env, process};

/// The oldest supported release, which Debian 12 has.
const MINIMUM: &str = "22.11";

const FUNCTIONS: &[&str] = &[
    "dpdk_sys_.*",
    // EAL
    "rte_eal_(init|cleanup|lcore_role|get_runtime_dir|iova_mode)",
    "rte_strerror",
    "rte_version",
    "rte_log_set_global_level",
    "rte_dev_(probe|remove)",
    "rte_get_tsc_hz",
    "rte_rdtsc",
    "rte_lcore_id",
    "rte_socket_id",
    "rte_thread_(register|unregister)",
    // Mempools and mbufs
    "rte_pktmbuf_(pool_create|alloc|alloc_bulk|free|free_bulk|linearize)",
    "rte_mempool_(avail_count|calc_obj_size|free)",
    // Rings
    "rte_ring_(create|free|enqueue_burst|dequeue_burst|count|get_capacity)",
    "rte_eth_from_rings",
    // Ports
    "rte_eth_(rx|tx)_burst",
    "rte_eth_(rx|tx)_queue_setup",
    "rte_eth_dev_(info_get|configure|start|stop|close|set_mtu|get_mtu|is_valid_port|socket_id)",
    "rte_eth_dev_(get_port_by_name|get_name_by_port|default_mac_addr_set|adjust_nb_rx_tx_desc)",
    "rte_eth_dev_(rss_reta_query|rss_reta_update|rss_hash_conf_get|rss_hash_update)",
    "rte_eth_dev_(conf_get|rx_offload_name|tx_offload_name)",
    "rte_eth_xstats_(get|get_names)",
    "rte_eth_(promiscuous|allmulticast)_(enable|disable|get)",
    "rte_eth_(macaddr_get|link_get_nowait|stats_get|stats_reset|find_next)",
];

const TYPES: &[&str] = &[
    "rte_mempool",
    "rte_ring",
    "rte_device",
    "rte_ether_addr",
    "rte_eth_(conf|dev_info|stats|xstat|xstat_name|link|rss_conf|rss_reta_entry64|rxconf|txconf)",
    "rte_lcore_role_t",
];

/// Types whose fields Rust never uses. Their layout differs between releases.
const OPAQUE: &[&str] = &["rte_mbuf", "rte_mempool", "rte_ring", "rte_device", "rte_eth_link"];

const CONSTANTS: &[&str] = &[
    "DPDK_SYS_.*",
    "RTE_MAX_ETHPORTS",
    "RTE_MAX_LCORE",
    "RTE_PKTMBUF_HEADROOM",
    "RTE_MEMPOOL_CACHE_MAX_SIZE",
    "RTE_ETH_NAME_MAX_LEN",
    "RTE_ETH_RETA_GROUP_SIZE",
    "RTE_ETHER_HDR_LEN",
    "RTE_ETHER_CRC_LEN",
    "RTE_ETHER_MIN_LEN",
    "RTE_RING_NAMESIZE",
    "RING_F_SP_ENQ",
    "RING_F_SC_DEQ",
    "RING_F_EXACT_SZ",
];

/// The shared objects that contain the bound functions. Drivers are not included, since the EAL loads them from the
/// directory that the distribution chose at build time. The exception is `rte_net_ring`, whose functions tests use to
/// create port pairs.
const LIBRARIES: &[&str] = &["rte_ethdev", "rte_mbuf", "rte_mempool", "rte_ring", "rte_eal", "rte_net_ring"];

/// Libraries that were part of `rte_eal` in 22.11 and are separate in later releases (`rte_log` since 23.11).
const LIBRARIES_OF_LATER_RELEASES: &[&str] = &["rte_log"];

fn main() {
    println!("cargo:rerun-if-changed=wrapper.h");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");

    let minimum = format!("--atleast-version={MINIMUM}");
    if pkg_config(&[&minimum]).is_none() {
        let found =
            pkg_config(&["--modversion"]).map_or("none".to_owned(), |version| version.trim().to_owned());
        fail(&format!(
            "libdpdk {MINIMUM} or newer is needed and pkg-config finds {found}. On Debian 12: \
             apt-get install libdpdk-dev libclang-dev clang pkg-config. For a DPDK built from source: \
             PKG_CONFIG_PATH=<prefix>/lib/x86_64-linux-gnu/pkgconfig"
        ));
    }
    let flags: Vec<String> =
        pkg_config(&["--cflags"]).unwrap_or_default().split_whitespace().map(str::to_owned).collect();
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR for build scripts"));

    let statics = out.join("static_fns");
    let mut builder = bindgen::Builder::default()
        .header("wrapper.h")
        .clang_args(&flags)
        .wrap_static_fns(true)
        .wrap_static_fns_path(&statics)
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_default(true)
        .layout_tests(false)
        .generate_comments(false)
        .use_core();
    for name in FUNCTIONS {
        builder = builder.allowlist_function(name);
    }
    for name in TYPES {
        builder = builder.allowlist_type(name);
    }
    for name in OPAQUE {
        builder = builder.opaque_type(name);
    }
    for name in CONSTANTS {
        builder = builder.allowlist_var(name);
    }
    let bindings = builder.generate().unwrap_or_else(|error| {
        fail(&format!(
            "bindgen cannot read DPDK's headers: {error}. On Debian 12: apt-get install libclang-dev clang"
        ))
    });
    bindings.write_to_file(out.join("bindings.rs")).expect("OUT_DIR is writable");

    let mut cc = cc::Build::new();
    cc.file(statics.with_extension("c")).include(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    for flag in &flags {
        cc.flag(flag);
    }
    // -O3 in every profile, because these are the burst functions. Warnings are off, because the headers are not ours.
    cc.opt_level(3).debug(false).warnings(false).compile("dpdk_sys_static_fns");

    for flag in pkg_config(&["--libs-only-L"]).unwrap_or_default().split_whitespace() {
        println!("cargo:rustc-link-search=native={}", flag.trim_start_matches("-L"));
    }
    let installed = pkg_config(&["--libs-only-l"]).unwrap_or_default();
    let optional = LIBRARIES_OF_LATER_RELEASES.iter().filter(|library| {
        installed.split_whitespace().any(|flag| flag.strip_prefix("-l") == Some(**library))
    });
    for library in LIBRARIES.iter().chain(optional) {
        println!("cargo:rustc-link-lib=dylib={library}");
    }
}

/// Standard output of `pkg-config ARGUMENTS libdpdk`; `None` if it fails or is not installed.
fn pkg_config(arguments: &[&str]) -> Option<String> {
    let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let output = Command::new(program).args(arguments).arg("libdpdk").output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn fail(message: &str) -> ! {
    eprintln!("dpdk-sys: {message}");
    process::exit(1);
}

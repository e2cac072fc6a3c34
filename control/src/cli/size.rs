//! `tidegate size`: the cores and the memory that a gateway needs for given numbers of Services, endpoints, flows and
//! packets per second, and the configuration that provides them.
//!
//! The sizes of tables and packet buffers are computed by the functions that allocate them
//! ([`MemoryNeeds`]). What a core forwards, and what the control plane takes, was measured ([`SOURCES`]).
//!
//! Invariant: nothing here reads the machine, so it runs without NICs, huge pages or root, anywhere.

use std::fmt;
use std::process::ExitCode;

use anyhow::ensure;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::{Args, ValueEnum};
use serde::Serialize;
use tidegate_cli::OutputArgs;
use tidegate_cli::output::{Table, print_answer};
use tidegate_conntrack::TableKind;
use tidegate_dataplane::gateway::{DataplaneConfig, InterfaceConfig, MemoryNeeds};
use tidegate_spec::ForwardingMode;
use tidegate_spec::limits::{BACKENDS_MAX, MAGLEV_SLOTS_DEFAULT, SERVICES_MAX, WORKERS_MAX};

/// Millions of packets per second that one worker forwarded in each mode, with a million flows of 1,000 Services with 10
/// backends and frames of 60 bytes. Of the modes that translate, the slower direction. A mode that was not measured counts
/// like the slowest of its kind.
const MEASURED: [(ForwardingMode, f64); 8] = [
    (ForwardingMode::DsrL2, 7.188),
    (ForwardingMode::DsrIpip, 6.793),
    (ForwardingMode::DsrGue, 6.764),
    (ForwardingMode::DsrGre, 6.764),
    (ForwardingMode::DsrGeneve, 6.764),
    (ForwardingMode::DsrDscp, 6.764),
    (ForwardingMode::Nat, 5.357),
    (ForwardingMode::FullNat, 5.540),
];
/// The share of the measured packets for which a core is planned. RSS is uneven, traffic comes in bursts, new flows cost
/// several times as much as known ones, and other CPUs are slower.
const CORE_LOAD: f64 = 0.5;
/// Entries of a flow table for each flow that is expected there: RSS is uneven, and a table under memory pressure shortens
/// timeouts.
const FLOW_HEADROOM: f64 = 1.25;

/// What the process takes for each Service, each endpoint, and without any, in bytes: its objects, desired state and
/// tables.
const OF_SERVICE: usize = 20_000;
const OF_ENDPOINT: usize = 3_000;
const OF_PROCESS: usize = 64 << 20;

/// Where these figures were measured.
const SOURCES: [&str; 2] = [
    "benches/results/2026-11-25-cells-xeon-vm-2-cores.md",
    "benches/results/2026-11-21-control-epyc-vm-2-cores.md",
];

/// DPDK's memory beside packet buffers, such as the rings of drivers, and the steps of its size, in MiB.
const DPDK_MIB: usize = 128;
/// The capacities of flow tables are multiples of this.
const ENTRIES_STEP: u64 = 1024;
/// The greatest `dataplane.flowTable.entriesPerCore`.
const ENTRIES_MAX: u64 = 1 << 28;
/// The size of a huge page, in MiB.
const HUGE_PAGE_MIB: usize = 2;

/// Arguments of `size`.
#[derive(Debug, Clone, Args)]
pub(super) struct SizeArgs {
    /// Services; one with several ports, or with addresses of both families, counts once for each
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=SERVICES_MAX as u64))]
    services: u64,
    /// Endpoints of all Services together
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=BACKENDS_MAX as u64))]
    endpoints: u64,
    /// Flows (connections, or pairs of UDP sockets) at the same time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    flows: u64,
    /// Packets per second through the gateway, in both directions together
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pps: u64,
    /// The forwarding mode of most Services
    #[arg(long, value_name = "MODE", default_value = ForwardingMode::FullNat.as_str(), value_parser = modes())]
    forwarding: ForwardingMode,
    /// Clients use IPv6, too: each family has its own flow tables
    #[arg(long)]
    dual_stack: bool,
    /// How most Services choose backends
    #[arg(long, value_enum, value_name = "SCHEDULER", default_value_t)]
    scheduler: Scheduler,
    #[command(flatten)]
    output: OutputArgs,
}

/// The schedulers, as far as their tables differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Scheduler {
    /// Seats
    #[default]
    Rendezvous,
    /// A Maglev table of the default size for each Service
    Maglev,
}

fn modes() -> impl clap::builder::TypedValueParser<Value = ForwardingMode> {
    let names = ForwardingMode::ALL.map(ForwardingMode::as_str);
    PossibleValuesParser::new(names).map(|name| {
        let named = ForwardingMode::ALL.into_iter().find(|mode| mode.as_str() == name);
        named.expect("the parser accepts only these names")
    })
}

/// What the gateway needs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Size {
    /// Worker cores, each dedicated.
    cores: usize,
    /// Packets per second for which one core is planned.
    packets_per_core: u64,
    /// Packets per second that one core forwarded when it was measured.
    packets_per_core_measured: u64,
    memory: MemoryBytes,
    /// Huge pages of 2 MiB (`vm.nr_hugepages`).
    huge_pages: usize,
    /// The part of the configuration.
    configuration: Configuration,
    /// Where the measured figures are from.
    sources: [&'static str; 2],
}

/// Bytes, by what takes them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct MemoryBytes {
    /// Packet buffers, as part of `huge_pages`.
    packet_buffers: usize,
    /// All memory of DPDK: `dataplane.memory.sizeMiB`.
    dpdk: usize,
    /// In `dataplane.flowTable.directory`, on tmpfs.
    flow_tables: usize,
    service_tables: usize,
    selection_tables: usize,
    /// Objects and the desired state, and the program itself.
    control_plane: usize,
    total: usize,
}

#[derive(Debug, Serialize)]
struct Configuration {
    dataplane: Dataplane,
}

/// Keys of section `dataplane`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Dataplane {
    cores: Vec<usize>,
    memory: Memory,
    flow_table: FlowTable,
}

#[derive(Debug, Serialize)]
struct Memory {
    hugepages: bool,
    #[serde(rename = "sizeMiB")]
    size_mib: usize,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FlowTable {
    entries_per_core: u64,
}

pub(super) fn run(args: &SizeArgs) -> anyhow::Result<ExitCode> {
    print_answer(args.output.style(), &size(args)?)?;
    Ok(ExitCode::SUCCESS)
}

fn size(args: &SizeArgs) -> anyhow::Result<Size> {
    let measured = MEASURED.iter().find(|(mode, _)| *mode == args.forwarding).map(|(_, mpps)| mpps * 1e6);
    let measured = measured.expect("every mode is listed");
    let per_core = measured * CORE_LOAD;
    let cores = (args.pps as f64 / per_core).ceil() as usize;
    ensure!(
        cores <= WORKERS_MAX,
        "--pps {} takes {cores} cores in mode {}; accepted: up to {:.0} packets per second for one gateway, which has at \
         most {WORKERS_MAX} workers: use several gateways",
        args.pps,
        args.forwarding.as_str(),
        per_core * WORKERS_MAX as f64
    );
    let entries = (args.flows as f64 * FLOW_HEADROOM / cores as f64).ceil() as u64;
    let entries = entries.next_multiple_of(ENTRIES_STEP);
    ensure!(
        entries <= ENTRIES_MAX,
        "--flows {} takes {entries} entries in the flow table of each of {cores} workers; accepted: up to {ENTRIES_MAX}, \
         with more workers or several gateways",
        args.flows
    );
    let needs = needs(args, cores, entries);
    let dpdk_mib = (needs.packet_buffers.div_ceil(1 << 20) + DPDK_MIB).next_multiple_of(DPDK_MIB);
    let (services, endpoints) = (args.services as usize, args.endpoints as usize);
    let tables = needs.service_tables + needs.selection_tables;
    let control_plane =
        OF_PROCESS + (services * OF_SERVICE + endpoints * OF_ENDPOINT).saturating_sub(needs.service_tables);
    Ok(Size {
        cores,
        packets_per_core: per_core as u64,
        packets_per_core_measured: measured as u64,
        memory: MemoryBytes {
            packet_buffers: needs.packet_buffers,
            dpdk: dpdk_mib << 20,
            flow_tables: needs.flow_tables,
            service_tables: needs.service_tables,
            selection_tables: needs.selection_tables,
            control_plane,
            total: (dpdk_mib << 20) + needs.flow_tables + tables + control_plane,
        },
        huge_pages: dpdk_mib.div_ceil(HUGE_PAGE_MIB),
        configuration: Configuration {
            dataplane: Dataplane {
                cores: (1..=cores).collect(),
                memory: Memory { hugepages: true, size_mib: dpdk_mib },
                flow_table: FlowTable { entries_per_core: entries },
            },
        },
        sources: SOURCES,
    })
}

/// The bytes of a gateway with two NICs, one towards clients and one towards backends.
fn needs(args: &SizeArgs, cores: usize, entries: u64) -> MemoryNeeds {
    let interface = |device: &str| InterfaceConfig {
        name: device.to_owned(),
        device: device.to_owned(),
        mac: None,
        mtu: Some(1500),
        vlan: None,
        addresses: Vec::new(),
    };
    let config = DataplaneConfig {
        cores: (1..=cores).collect(),
        flow_entries_per_core: entries as usize,
        interfaces: ["0000:00:00.0", "0000:00:00.1"].map(interface).into(),
        ..DataplaneConfig::default()
    };
    let kinds = if args.forwarding.is_dsr() {
        [TableKind::DsrV4, TableKind::DsrV6]
    } else {
        [TableKind::NatV4, TableKind::NatV6]
    };
    let kinds = if args.dual_stack { &kinds[..] } else { &kinds[..1] };
    let table_size = (args.scheduler == Scheduler::Maglev).then_some(MAGLEV_SLOTS_DEFAULT);
    MemoryNeeds::of(&config, kinds, args.services as usize, args.endpoints as usize, table_size)
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Size { memory, configuration: Configuration { dataplane }, .. } = self;
        let mib = |bytes: usize| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        let mpps = |packets: u64| packets as f64 / 1e6;
        let mut table = Table::new(&["NEEDED", "FOR", "NUMBER"]);
        let mut row = |what: &str, of: &str, number: String| table.row([what.into(), of.into(), number]);
        let planned = format!("workers, {:.2} million packets per second each", mpps(self.packets_per_core));
        row("cores", &planned, self.cores.to_string());
        row("memory", "DPDK: packet buffers and drivers, in huge pages", mib(memory.dpdk));
        row("memory", "flow tables, in dataplane.flowTable.directory (tmpfs)", mib(memory.flow_tables));
        row("memory", "tables of Services and backends, with counters", mib(memory.service_tables));
        row("memory", "tables for the choice of backends", mib(memory.selection_tables));
        row("memory", "control plane: objects and desired state, and the program", mib(memory.control_plane));
        row("memory", "all of this", mib(memory.total));
        row("huge pages", "of 2 MiB: sysctl vm.nr_hugepages", self.huge_pages.to_string());
        write!(f, "{table}")?;
        let [packets, control] = self.sources;
        writeln!(
            f,
            "\nA core is planned for half of the {:.2} million packets per second that it forwarded in {packets}\n\
             (60 bytes, a million flows). That depends on the CPU and the NIC, and new flows cost more: measure yours. The memory\n\
             of the control plane is from {control}.\nThe kernel and other programs need cores and memory of their own.",
            mpps(self.packets_per_core_measured)
        )?;
        let cores: Vec<String> = dataplane.cores.iter().map(ToString::to_string).collect();
        writeln!(
            f,
            "\ndataplane:\n  cores: [{}]\n  memory: {{hugepages: true, sizeMiB: {}}}\n  flowTable: {{entriesPerCore: {}}}",
            cores.join(", "),
            dataplane.memory.size_mib,
            dataplane.flow_table.entries_per_core
        )
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;
    use tidegate_model::config;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: SizeArgs,
    }

    fn args(line: &str) -> SizeArgs {
        Line::try_parse_from(std::iter::once("size").chain(line.split(' '))).expect("it is accepted").args
    }

    fn sized(line: &str) -> Size {
        size(&args(line)).expect("one gateway suffices")
    }

    #[test]
    fn a_configuration_with_the_result_is_accepted() {
        for (line, cores) in [
            ("--services 1000 --endpoints 10000 --flows 1000000 --pps 2000000", 1),
            ("--services 1 --endpoints 1 --flows 1 --pps 1 --forwarding dsr-l2", 1),
            ("--services 5000 --endpoints 50000 --flows 20000000 --pps 30000000 --dual-stack", 11),
        ] {
            let size = sized(line);
            let shown = size.to_string();
            let fragment = &shown[shown.find("dataplane:").expect("it has one")..];
            let text = format!("apiVersion: {}\nkind: {}\n{fragment}", config::API_VERSION, config::KIND);
            let loaded = config::parse(&text, "gateway.yaml", Path::new("."), 64);
            assert!(!loaded.report.has_errors(), "{}", loaded.report);
            let dataplane = loaded.config.expect("it has no errors").dataplane;
            assert_eq!((dataplane.cores.len(), size.cores), (cores, cores), "{line}");
            assert_eq!(
                u64::from(dataplane.flow_entries_per_core),
                size.configuration.dataplane.flow_table.entries_per_core
            );
            assert_eq!(dataplane.memory.size_mib as usize * (1 << 20), size.memory.dpdk);
            assert!(
                size.memory.packet_buffers < size.memory.dpdk
                    && size.huge_pages * (2 << 20) >= size.memory.dpdk
            );
        }
    }

    #[test]
    fn what_needs_more_than_a_gateway_is_refused_with_what_is_accepted() {
        let error = |line: &str| size(&args(line)).expect_err("too much").to_string();
        let packets = error("--services 1 --endpoints 1 --flows 1 --pps 1000000000");
        assert!(packets.contains("--pps 1000000000 takes 362 cores in mode fullnat"), "{packets}");
        assert!(
            packets.contains("accepted: up to 177280000 packets per second for one gateway"),
            "{packets}"
        );
        let flows = error("--services 1 --endpoints 1 --flows 1000000000 --pps 1");
        assert!(flows.contains("--flows 1000000000 takes") && flows.contains("up to 268435456"), "{flows}");
        for (line, named) in [("0", "--services"), ("1048577", "1..=1048576")] {
            let line = format!("size --services {line} --endpoints 1 --flows 1 --pps 1");
            let error = Line::try_parse_from(line.split(' ')).expect_err("out of range").to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn maglev_tables_and_ipv6_take_more() {
        let line = "--services 100 --endpoints 1000 --flows 100000 --pps 1";
        let (plain, more) =
            (sized(line).memory, sized(&format!("{line} --dual-stack --scheduler maglev")).memory);
        assert_eq!(more.selection_tables, 100 * (65_537 * 2 + 10 * 4));
        assert!(more.flow_tables > 2 * plain.flow_tables && plain.selection_tables < 100 * 200);
    }

    #[test]
    fn the_measured_figures_are_those_of_the_results() {
        let read = |path: &str| {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        let [packets, control] = SOURCES.map(read);
        for (mode, mpps) in MEASURED {
            let mode = match mode {
                ForwardingMode::DsrGre | ForwardingMode::DsrGeneve | ForwardingMode::DsrDscp => {
                    "dsr-gue".to_owned()
                }
                _ if mode.is_dsr() => mode.as_str().to_owned(),
                _ => format!("{} replies", mode.as_str()),
            };
            let row =
                format!("| tidegate {mode}, memif, 1,000,000 flows, 60 bytes, UDP, 1000x10 | {mpps:.3} (");
            assert!(packets.contains(&row), "{row}");
        }
        assert!(control.contains(
            "| a Service with its slice and one endpoint; an endpoint more | 23.2; 2.9 KB | 22.6; 3.0 KB |"
        ));
    }
}

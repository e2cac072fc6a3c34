//! The whole pipeline, mode by mode, over a ring of frames in bursts of 32, with criterion. It follows one scenario
//! over time. The figures in results/ come from the program `figures`, which alternates between scenarios.
#![allow(missing_docs, reason = "criterion's macros make public functions")]

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tidegate_pipeline_bench::lab::{ENTRIES, Lab, RING};

const SCENARIOS: [&str; 20] = [
    "trivial/known-1",
    "dsr-l2/known-1",
    "dsr-l2/known-1000",
    "dsr-l2/known-1000000",
    "dsr-l2/new",
    "dsr-ipip/known-1",
    "dsr-ipip/known-1000",
    "dsr-ipip/known-1000000",
    "dsr-ipip/new",
    "nat/known-1",
    "nat/known-1000000",
    "nat/new",
    "nat-reply/known-1",
    "nat-reply/known-1000000",
    "fullnat/known-1",
    "fullnat/known-1000000",
    "fullnat/new",
    "fullnat-reply/known-1",
    "fullnat-reply/known-1000000",
    "dsr-l2/known-1000000/v6",
];

fn pipeline(c: &mut Criterion) {
    let mut group = c.benchmark_group("pipeline");
    group.throughput(Throughput::Elements(1)).sample_size(20);
    for name in SCENARIOS {
        let mut lab: Option<Lab> = None;
        group.bench_function(name, |b| {
            // Built only when it is measured, so that a filtered scenario costs nothing.
            let lab = lab.get_or_insert_with(|| Lab::new(name.parse().expect("a scenario"), ENTRIES));
            b.iter_custom(|packets| {
                let mut took = Duration::ZERO;
                let runs = packets.div_ceil(RING as u64);
                for _ in 0..runs {
                    lab.refill();
                    let start = Instant::now();
                    lab.run();
                    took += start.elapsed();
                }
                // Scale to the requested number of packets.
                took.mul_f64(packets as f64 / (runs * RING as u64) as f64)
            });
        });
    }
    group.finish();
}

fn quick() -> Criterion {
    Criterion::default().warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_secs(1))
}

criterion_group!(name = benches; config = quick(); targets = pipeline);
criterion_main!(benches);

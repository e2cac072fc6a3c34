//! The fuzz harness of the pipeline and of the capture reader, and the properties that it checks.
//!
//! The short run in the tests (`tests/pipeline_fuzz.rs`, seeded) and the long run (`fuzz/`, coverage-guided) use the
//! same harness. An input is a stream of choices ([`choices`]). They create a gateway of one or two workers with a
//! changing snapshot ([`world`]), frames ([`frames`]) and times. [`checks`] checks each frame with its own simple code.
//!
//! Invariant: equal inputs have equal digests, and a violation is a panic that names the property.

mod captures;
mod checks;
mod choices;
mod context;
mod frames;
mod world;

pub use captures::captures;
pub use world::Outcome;

use choices::Choices;
use world::World;

/// The maximum number of steps in a run, so that an input of any length ends.
const STEPS_MAX: usize = 48;

/// Runs the pipeline as `input` directs.
///
/// # Panics
/// If the pipeline panics or violates a property: a frame is not counted exactly once, changed but not sent, malformed
/// when sent, sent with a newly wrong checksum, or longer than the MTU, or a flow table exceeds its limits.
pub fn pipeline(input: &[u8]) -> Outcome {
    let mut choices = Choices::new(input);
    let mut world = World::new(&mut choices);
    for _ in 0..STEPS_MAX {
        if choices.is_over() {
            break;
        }
        match choices.below(8) {
            0 => world.change(&mut choices),
            1 => world.wait(&mut choices),
            _ => world.burst(&mut choices),
        }
    }
    world.finish()
}

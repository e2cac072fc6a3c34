//! What fuzzing throws at the pipeline and at the capture reader, and the promises that must hold whatever it is.
//!
//! One harness for the short run in the tests (`tests/pipeline_fuzz.rs`, seeded) and for the long one (`fuzz/`,
//! coverage-guided): an input is a stream of choices ([`choices`]) that make a gateway of one or two workers whose
//! snapshot changes ([`world`]), frames ([`frames`]) and times; [`checks`] judges each frame by plain code of its own.
//!
//! Invariant: pure. The same input gives the same digest; a broken promise is a panic that says which.

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

/// Steps of one run at most, so that an input of any length ends.
const STEPS_MAX: usize = 48;

/// Runs the pipeline over whatever `input` says.
///
/// # Panics
/// When the pipeline panics or breaks a promise: a frame counted not once, changed though not sent, sent malformed or
/// with a checksum that was right and is wrong, beyond the MTU, a flow table beyond its bounds.
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

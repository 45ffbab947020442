//! The engine's tests: one program, because building it is most of what its tests take.

mod arguments;
mod around;
mod at_once;
mod between;
mod corners;
mod counts;
mod crowd;
mod documented;
mod duties;
mod embedding;
mod flight;
mod idle;
mod mixed;
mod reports;
mod sketches;
mod support;
mod walkers;

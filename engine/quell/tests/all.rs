//! The engine's tests. We build them as one program, because building takes longer than the tests.

mod arguments;
mod around;
mod at_once;
mod corners;
mod counts;
mod documented;
mod duties;
mod flight;
mod idle;
mod reports;
mod sketches;
mod support;

//! The model's commands.

pub mod held_out;
pub mod list;
pub mod reproduce;
pub mod run;
pub mod scale;
pub mod sweep;

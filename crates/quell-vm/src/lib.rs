#![no_std]
//! See the workspace README.

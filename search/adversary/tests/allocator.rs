//! A campaign that couldn't draw the same programs again refuses to begin. This program has the host's allocator.

use quell_adversary::generate::Campaign;

#[test]
#[should_panic(expected = "make that the program's `#[global_allocator]`")]
fn a_campaign_without_its_allocator_says_so() {
    Campaign::new(1, 1, Vec::new(), &[]);
}

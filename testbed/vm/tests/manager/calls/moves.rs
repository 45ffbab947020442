//! Pages that move: to other addresses and to other nodes.

use super::*;

#[test]
fn remap_moves_pages_without_copying() {
    everywhere(256, |program| {
        let a = program.call(anonymous(6 * PAGE, PageSize::Base)).unwrap();
        for page in 0..5 {
            program.write(a + page * PAGE, page + 1);
        }
        program.call(Call::PageOut { address: a + PAGE, bytes: PAGE }).unwrap();
        let b = program.call(Call::Remap { address: a, bytes: 6 * PAGE, to: None }).unwrap();
        assert_eq!(
            [0, 1, 2, 3, 4, 5].map(|page| program.read(b + page * PAGE)),
            [1, 2, 3, 4, 5, 0]
        );
        assert_eq!(program.try_access(a, None), Err(Fault::NotMapped));
        let c = b + (1 << 30);
        let to = Some(c);
        assert_eq!(program.call(Call::Remap { address: b, bytes: 2 * PAGE, to }), Ok(c));
        assert_eq!(
            (program.read(c), program.read(c + PAGE), program.read(b + 2 * PAGE)),
            (1, 2, 3)
        );
        let to = Some(b + PAGE);
        let overlap = Call::Remap { address: b + 2 * PAGE, bytes: 4 * PAGE, to };
        assert_eq!(program.call(overlap), Ok(b + PAGE).and(Err(Error::Overlap)));
        program.finish(&[1]);
    });
}

#[test]
fn migration_keeps_contents_and_demotion_makes_room() {
    for policy in [Policy::BASELINE, Policy::ALL] {
        let node = |first, frames, slow| Node {
            extent: quell::Extent { first: Frame(first), frames },
            slow,
        };
        let map = MemoryMap::new(&[node(0x1000, 128, false), node(0x2000, 1024, true)]);
        let program = Program::start(Options { map, policy, ..Options::new(0) });
        let a = program.call(anonymous(20 * PAGE, PageSize::Base)).unwrap();
        for page in 0..20 {
            program.write(a + page * PAGE, page);
        }
        assert_eq!(program.call(Call::Migrate { address: a, bytes: 20 * PAGE, node: 1 }), Ok(20));
        for page in 0..20 {
            assert_eq!(program.read(a + page * PAGE), page);
            program.write(a + page * PAGE, page + 1);
        }
        assert_eq!(program.call(Call::Migrate { address: a, bytes: 20 * PAGE, node: 1 }), Ok(0));
        assert_eq!(program.call(Call::Migrate { address: a, bytes: PAGE, node: 0 }), Ok(1));
        assert_eq!(
            program.call(Call::Migrate { address: a, bytes: PAGE, node: 2 }),
            Err(Error::NoNode)
        );
        // More than the fast node holds: old pages move to the slow one, none to swap.
        let b = program.call(anonymous(300 * PAGE, PageSize::Base)).unwrap();
        for page in 0..300 {
            program.write(b + page * PAGE, page);
        }
        let totals = program.vm.check().unwrap();
        assert_eq!((totals.anonymous, totals.swapped), (320, 0));
        for page in 0..300 {
            assert_eq!(program.read(b + page * PAGE), page);
        }
        program.finish(&[1]);
    }
}

//! Files: shared and private mappings, reading and writing, truncation.

use super::*;

#[test]
fn files_are_shared_private_written_and_read() {
    everywhere(256, |program| {
        let id = program.call(Call::Create { bytes: 4 * PAGE }).unwrap();
        let file = id as u32;
        let shared = map_file(&program, id, 4 * PAGE, true, Protection::READ_WRITE);
        let reader = map_file(&program, id, 4 * PAGE, true, Protection::READ);
        let private = map_file(&program, id, 4 * PAGE, false, Protection::READ_WRITE);
        program.call(Call::Write { file, offset: 8, value: 1 }).unwrap();
        assert_eq!([shared, reader, private].map(|at| program.read(at + 8)), [1; 3]);
        program.write(shared + 8, 2);
        assert_eq!([shared, reader, private].map(|at| program.read(at + 8)), [2; 3]);
        assert_eq!(program.call(Call::Read { file, offset: 8 }), Ok(2));
        program.write(private + 8, 3);
        program.write(shared + 8, 4);
        assert_eq!([shared, reader, private].map(|at| program.read(at + 8)), [4, 4, 3]);
        assert_eq!(program.try_access(reader, Some(1)), Err(Fault::Forbidden));
        assert_eq!(program.call(Call::Sync { file }), Ok(1));
        assert_eq!(program.call(Call::Sync { file }), Ok(0));
        program.write(shared + 2 * PAGE, 5);
        program.write(shared + 8, 6);
        assert_eq!(program.call(Call::Sync { file }), Ok(2));
        // Pages are reclaimed and read back from the device.
        program.call(Call::PageOut { address: shared, bytes: 4 * PAGE }).unwrap();
        assert_eq!([shared, reader].map(|at| program.read(at + 8)), [6, 6]);
        assert_eq!([shared, private].map(|at| program.read(at + 2 * PAGE)), [5, 5]);
        program.finish(&[1]);
    });
}

#[test]
fn truncation_takes_pages_from_under_their_mappings() {
    everywhere(256, |program| {
        let id = program.call(Call::Create { bytes: 40 * PAGE }).unwrap();
        let file = id as u32;
        let a = map_file(&program, id, 40 * PAGE, true, Protection::READ_WRITE);
        for page in 0..40 {
            program.write(a + page * PAGE, 1 + page);
            program.write(a + page * PAGE + 2048, 1 + page);
        }
        program.call(Call::Sync { file }).unwrap();
        program.call(Call::PageOut { address: a + 20 * PAGE, bytes: 10 * PAGE }).unwrap();
        program.call(Call::Truncate { file, bytes: 2 * PAGE + 1024 }).unwrap();
        assert_eq!(program.read(a + 2 * PAGE), 3);
        assert_eq!(program.read(a + 2 * PAGE + 2048), 0);
        assert_eq!(program.try_access(a + 3 * PAGE, None), Err(Fault::BeyondEnd));
        assert_eq!(program.try_access(a + 25 * PAGE, None), Err(Fault::BeyondEnd));
        assert_eq!(program.call(Call::Read { file, offset: 3 * PAGE }), Err(Error::BeyondEnd));
        program.call(Call::Truncate { file, bytes: 40 * PAGE }).unwrap();
        assert_eq!([3, 25, 39].map(|page| program.read(a + page * PAGE)), [0; 3]);
        program.finish(&[1]);
    });
}

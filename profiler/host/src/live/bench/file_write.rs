//! Writes at random through a shared file mapping (S4), as `sysbench fileio` does in its mmap mode.
//!
//! 100 blocks of 16 KiB are written at random places, then the file is synced. To write a page back, the kernel
//! write-protects it in every mapping. This is a shootdown for each page if another CPU has the address space loaded.
//! Forms: `msync` of each block, one `msync` over the whole file, one `fdatasync`. The kernel flushes page by page in
//! all three; one call only saves the wait for the device after each block.
//!
//! Not shown: the cost without the device. Its speed is most of the time on any device except persistent memory.

use std::io;
use std::sync::atomic::Ordering;

use rand::{Rng, RngExt};
use rand_pcg::Pcg64;

use super::super::guards::unlinked_file;
use super::super::lab::{Halt, Lab, RowSpec, Spinners};
use crate::memory::{Mapping, page_size};

const FILE_BYTES: usize = 64 << 20;
const BLOCK: usize = 16 << 10;
const BLOCKS: u64 = 100;
pub fn run(lab: &mut Lab) -> Result<(), Halt> {
    lab.require_disk("nothing is ever written back there, so no page is write-protected")?;
    lab.split(6);
    let file = unlinked_file(&lab.dir, FILE_BYTES as u64)?;
    let map = Mapping::file(&file, FILE_BYTES, true)?;
    let page = page_size();
    let mut random = Pcg64::new(1, 0);
    let mut write_blocks = |written: &mut Vec<usize>| {
        written.clear();
        for _ in 0..BLOCKS {
            let block = random.random_range(0..FILE_BYTES / BLOCK) * BLOCK;
            let value = random.next_u64();
            for offset in (block..block + BLOCK).step_by(page.min(BLOCK)) {
                map.word(offset).store(value, Ordering::Relaxed);
            }
            written.push(block);
        }
    };
    let mut written = Vec::new();
    let op = "16 KiB block written and synced";
    for spinning in 0..lab.cpus.len().min(2) {
        let spinners = Spinners::start(&lab.cpus[1..=spinning])?;
        let single = format!("msync_each_block/spin{spinning}");
        let each = RowSpec::single(&single, op).against(&spinners);
        let all = |name: &str| {
            RowSpec::batched(format!("{name}/spin{spinning}"), &single, op).against(&spinners)
        };
        let mut row = |plan: RowSpec, sync: &dyn Fn(&[usize]) -> io::Result<()>| {
            let bytes_per_op = Some(BLOCK as u64);
            let plan = RowSpec {
                bytes_per_op,
                ..plan
            };
            lab.row(
                plan,
                || Ok(()),
                || {
                    write_blocks(&mut written);
                    sync(&written)?;
                    Ok(BLOCKS)
                },
            )
        };
        row(each, &|written| {
            // msync only takes whole pages; a block may be smaller than a page.
            let mut blocks = written.iter();
            blocks.try_for_each(|&block| map.sync(block / page * page, BLOCK.max(page)))
        })?;
        row(all("msync_all"), &|_| map.sync(0, FILE_BYTES))?;
        row(all("fdatasync"), &|_| file.sync_data())?;
    }
    lab.warn("most of the time is the device: compare interrupts and shares, not times, with other machines");
    Ok(())
}

use super::*;
use quell::Policy;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("held-out")
}

/// Makes a table whose sides differ in a discard.
fn made_up(name: &str, figure: &str) -> Result<Table, String> {
    let folder = std::env::temp_dir().join(format!("quell-held-out-{}-{name}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join(FILE);
    let text = format!(
        "name = \"made-up\"\ntitle = \"t\"\nsource = \"s\"\nseen = \"r\"\nworkload = \"dontneed\"\n\
         machine = \"haswell-server\"\nparameters = [\"iterations=100\"]\n\
         [before]\nlabel = \"b\"\npolicy = \"baseline\"\n\
         [after]\nlabel = \"a\"\npolicy = \"S4\"\n{figure}"
    );
    fs::write(&file, text).unwrap();
    let table = find(&folder).map(|mut tables| tables.remove(0));
    fs::remove_dir_all(&folder).unwrap();
    table
}

#[test]
fn the_template_of_a_table_can_be_run_and_fitted() {
    let tables = find(&root().join("../new-table")).unwrap_or_else(|error| panic!("{error}"));
    let mut results = Results::default();
    let (calibrated, factors) = tables[0].calibrated(&mut results);
    assert_eq!(factors.len(), 1);
    results.run("", tables[0].jobs().chain(calibrated.jobs()));
    let rows = tables[0].rows_with(&calibrated, &results);
    assert_eq!(rows.len(), 2);
    for row in &rows {
        assert!(row.reason.is_none() && row.off.is_some(), "{:?}", row.reason);
    }
    // Only the figure that was printed before the change can be fitted.
    let before = |row: &Row| row.calibrated.as_ref().unwrap().model_before.unwrap();
    assert!((before(&rows[0]) / 4500.0 - 1.0).abs() < 0.02);
}

#[test]
fn every_table_can_be_read_and_is_built_in() {
    let tables = built_in().unwrap_or_else(|error| panic!("{error}"));
    let folders = fs::read_dir(root()).unwrap().count();
    assert_eq!(tables.len(), folders);
    assert!(tables.is_sorted_by(|a, b| a.name < b.name));
    for table in &tables {
        assert!(root().join(&table.name).is_dir(), "{}: not its folder's name", table.name);
        assert!(table.cpu_time.is_some(), "{}: no cpu_seconds", table.name);
    }
}

#[test]
fn the_shortest_tables_fit_into_a_limit() {
    let second = Duration::from_secs(1);
    let tables = || built_in().unwrap();
    let times = |tables: &[Table]| tables.iter().map(|t| t.cpu_time.unwrap()).collect::<Vec<_>>();
    let all = times(&tables());
    let shortest = *all.iter().min().unwrap();
    assert_eq!(times(&within(tables(), shortest, 1)), [shortest]);
    assert!(within(tables(), Duration::ZERO, 2).is_empty());
    assert_eq!(within(tables(), 10_000 * second, 4).len(), all.len());
    assert_eq!(expected(&tables(), 2), Some(all.iter().sum::<Duration>() / 2));
}

#[test]
fn a_prediction_is_the_ratio_of_two_runs() {
    let table = made_up("ratio", "[[figure]]\ncase = \"c\"\ncpus = 2\nchange = -50\n").unwrap();
    let mut results = Results::default();
    results.run("test", table.jobs());
    let rows = table.rows(&results);
    let [row] = &rows[..] else {
        panic!("{rows:?}");
    };
    let job = |side: usize| &table.figures[0].sides[side][0];
    assert_ne!(job(0).policy, job(1).policy);
    let ratio = row.model_after.unwrap() / row.model_before.unwrap();
    assert!(ratio < 1.0, "S4 saves something: {ratio}");
    assert_eq!(row.change_predicted, Some(ratio - 1.0));
    assert_eq!(row.off, Some(ratio / 0.5 - 1.0));
    assert_eq!(row.violations, 0);
}

#[test]
fn a_difference_is_compared_in_the_published_unit() {
    let figure = "[[figure]]\ncase = \"c\"\ncpus = 2\ncompare = \"difference\"\npublished = [1500, 1000]\nunit = \"ns\"\n";
    let table = made_up("difference", figure).unwrap();
    let mut results = Results::default();
    results.run("test", table.jobs());
    let row = table.rows(&results).remove(0);
    let saved = row.model_before.unwrap() - row.model_after.unwrap();
    assert!((row.off.unwrap() - (saved / 500.0 - 1.0)).abs() < 1e-9, "{row:?}");
    let refused =
        made_up("alone", "[[figure]]\ncase = \"c\"\ncompare = \"difference\"\nchange = 5\n");
    assert!(refused.unwrap_err().contains("only with the former"));
}

#[test]
fn too_small_by_a_factor_is_as_far_as_too_large() {
    assert!(near(0.0) && near(0.149) && near(1.0 / 1.149 - 1.0));
    assert!(!near(0.151) && !near(1.0 / 1.151 - 1.0));
    assert!(!near(-1.0) && !near(-2.0), "of another sign");
}

#[test]
fn a_mistake_names_the_file_and_what_is_wrong() {
    let cases = [
        ("", "figure"),
        ("[[figure]]\ncase = \"c\"\n", "c: expected either"),
        ("[[figure]]\ncase = \"c\"\nchange = -100\n", "c: expected either"),
        ("[[figure]]\ncase = \"c\"\npublished = [0, 1]\nunit = \"s\"\n", "c: expected either"),
        ("[[figure]]\ncase = \"c\"\nchange = 1\nparameters = [\"speed=3\"]\n", "parameter speed=3"),
        ("[[figure]]\ncase = \"c\"\nchange = 1\nmachine = \"none.toml\"\n", "none.toml"),
        ("[[figure]]\ncase = \"c\"\nchange = 1\nreads = \"luck\"\n", "luck"),
        ("[[figure]]\ncase = \"c\"\nchanged = 1\n", "changed"),
    ];
    for (index, (figure, expected)) in cases.into_iter().enumerate() {
        let said = made_up(&format!("wrong-{index}"), figure).unwrap_err();
        assert!(said.contains(FILE) && said.contains(expected), "{figure}: {said}");
    }
    let nowhere = find(Path::new("no/such/folder")).unwrap_err();
    assert!(nowhere.contains("held-out in a checkout"), "{nowhere}");
}

/// Makes a table whose figure from before the model reaches with twice the path costs.
fn twice(published_after: f64) -> (Table, Vec<Factor>, f64) {
    let figure = |before: f64| {
        format!(
            "[[figure]]\ncase = \"c\"\ncpus = 1\npublished = [{before}, {published_after}]\nunit = \"us/loop\"\n"
        )
    };
    let name = format!("twice-{published_after}");
    let table = made_up(&name, &figure(1.0)).unwrap();
    let mut results = Results::default();
    let doubled = calibrate::changed(&table.figures[0].sides[0][0], &[(Parameter::Scale, 2.0)]);
    results.run("test", [doubled.clone()]);
    let before = results.get(&doubled).unwrap().measure.value / 1e3;
    let table = made_up(&name, &figure(before)).unwrap();
    let mut fresh = Results::default();
    let (table, factors) = table.calibrated(&mut fresh);
    assert_eq!(fresh.failures().collect::<Vec<_>>(), Vec::<&str>::new());
    (table, factors, before)
}

#[test]
fn path_costs_are_fitted_to_the_figures_from_before_and_to_no_others() {
    let (table, factors, before) = twice(0.7);
    let [(parameter, factor)] = factors[..] else {
        panic!("one figure fixes one cost: {factors:?}");
    };
    assert_eq!(parameter, Parameter::Scale);
    assert!((factor - 2.0).abs() < 0.1, "{factor}");
    let mut results = Results::default();
    results.run("test", table.jobs());
    let row = table.rows(&results).remove(0);
    let model = row.model_before.unwrap() / 1e3;
    assert!((model / before - 1.0).abs() < 0.01, "{model} for {before}");
    let (_, other, _) = twice(123.0);
    assert_eq!(factors, other, "the figure from after plays no part");
}

#[test]
fn a_table_without_figures_in_the_models_unit_is_not_fitted() {
    let table = made_up("change", "[[figure]]\ncase = \"c\"\nchange = -50\n").unwrap();
    let (_, factors) = table.calibrated(&mut Results::default());
    assert!(factors.is_empty(), "{factors:?}");
}

#[test]
fn a_prediction_with_the_wrong_sign_is_a_miss() {
    let table = made_up("sign", "[[figure]]\ncase = \"c\"\ncpus = 1\nchange = 0.5\n").unwrap();
    let figure = &table.figures[0];
    assert!(figure.same_sign(1.001) && figure.same_sign(1.0));
    assert!(near(0.999 / 1.005 - 1.0) && !figure.same_sign(0.999));
}

/// Checks that two CPUs of one core take longer for the same work, and that a CPU waits for a held lock.
#[test]
fn shared_cores_and_locks_cost_time() {
    let machine = quell_clock::built_in("haswell-server").unwrap();
    let time = |set: &[&str], cpus| {
        let machine = Arc::new(machine.with_text("test", set).unwrap());
        let workload = workloads::known("munmap", ["pages=1"]);
        let job = Job::new(machine, workload, Policy::BASELINE, cpus);
        let mut results = Results::default();
        results.run("test", [job.clone()]);
        results.get(&job).unwrap().measure.value
    };
    let apart = time(&["kernel.unmap=20us"], 2);
    let together = time(&["kernel.unmap=20us", "cpu.cpus_per_core=2"], 2);
    assert!(together > 1.3 * apart, "{apart} {together}");
    let [free, held] = ["0us", "5us"].map(|hold| time(&[&format!("lock.lists_hold={hold}")], 1));
    assert!(held > free + 4_000.0, "{free} {held}");
}

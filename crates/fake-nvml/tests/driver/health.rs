//! GPUs and drivers that fail, disappear and return.

use std::time::Duration;

use kai_gpu::{Driver, HealthEvent, HealthEventKind, MigInstance, OpenOptions};

use crate::stage::{bare_driver, bare_machine, driver, say, scenario, wait_for, write_control};

#[test]
fn a_gpu_fails_recovers_and_runs_hot() {
    scenario("health::child_watches_health", "h100:3", &[]);
}

#[test]
#[ignore = "run by its parent"]
fn child_watches_health() {
    let ours = bare_driver();
    let devices = ours.devices().unwrap().devices;
    let uuid = devices[1].uuid.clone();
    assert_eq!(ours.wait_events(Duration::from_millis(700)).unwrap(), []);

    let begun = write_control("events: [{gpu: 1, xid: 79}]");
    let events = wait_for(&ours, |events| !events.is_empty());
    let took = begun.elapsed();
    println!("measured: an Xid reached our driver after {took:?}");
    assert_eq!(
        events,
        [HealthEvent {
            uuid: Some(uuid.clone()),
            mig: None,
            kind: HealthEventKind::Xid(79)
        }]
    );

    say(
        "events: [{gpu: 1, xid: 79}, {gpu: 1, xid: 94, gpuInstanceId: 7, computeInstanceId: 0}, {gpu: 0, doubleBitEcc: true}]",
    );
    let events = wait_for(&ours, |events| events.len() >= 2);
    assert_eq!(
        events[0].mig,
        Some(MigInstance {
            gpu_instance_id: 7,
            compute_instance_id: 0
        })
    );
    assert_eq!(events[1].kind, HealthEventKind::DoubleBitEcc);

    for (state, words) in [("lost", "GPU is lost"), ("reset-required", "GPU requires reset")] {
        let begun = write_control(&format!("gpus: {{1: {{state: {state}}}}}"));
        let events = wait_for(&ours, |events| !events.is_empty());
        let took = begun.elapsed();
        println!("measured: {state} was noticed after {took:?}");
        assert_eq!(events.len(), 1, "{events:?}");
        let HealthEventKind::Lost { reason } = &events[0].kind else {
            panic!("{events:?}")
        };
        assert!(reason.contains(words), "{reason}");
        let error = ours.probe(&uuid).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        let now = ours.devices().unwrap();
        assert_eq!(now.devices.len(), 3, "a silent GPU keeps its place");
        assert_eq!(now.devices[1].uuid, uuid);
        assert!(ours.samples().unwrap()[1].unreachable.as_ref().unwrap().contains(words));
        assert!(ours.samples().unwrap()[2].unreachable.is_none());

        let begun = write_control("");
        let events = wait_for(&ours, |events| !events.is_empty());
        let took = begun.elapsed();
        println!("measured: its return was noticed after {took:?}");
        assert_eq!(
            events[0],
            HealthEvent {
                uuid: Some(uuid.clone()),
                mig: None,
                kind: HealthEventKind::Recovered
            }
        );
        ours.probe(&uuid).unwrap();
    }

    say("gpus: {2: {temperatureCelsius: 95}}");
    assert_eq!(ours.samples().unwrap()[2].temperature_celsius, Some(95));
}

#[test]
fn a_gpu_that_is_gone_changes_the_inventory() {
    scenario("health::child_counts_anew", "t4:3", &[]);
}

#[test]
#[ignore = "run by its parent"]
fn child_counts_anew() {
    let ours = bare_driver();
    assert_eq!(ours.devices().unwrap().devices.len(), 3);
    assert!(ours.wait_events(Duration::from_millis(600)).unwrap().is_empty());
    say("gpus: {2: {state: removed}}");
    let changed = |events: &[HealthEvent]| {
        events
            .iter()
            .any(|event| event.kind == HealthEventKind::InventoryChanged)
    };
    let events = wait_for(&ours, changed);
    assert!(
        events
            .iter()
            .any(|event| matches!(event.kind, HealthEventKind::Lost { .. })),
        "{events:?}"
    );
    assert_eq!(ours.devices().unwrap().devices.len(), 2);
}

/// On hardware NVML reports a GPU as lost, or does not list it, until the library is reopened. A driver that never reopens it would never
/// see the GPU again.
#[test]
fn a_gpu_that_returns_is_seen_by_opening_the_library_anew() {
    scenario("health::child_opens_anew", "t4:3", &[]);
}

#[test]
#[ignore = "run by its parent"]
fn child_opens_anew() {
    let ours = driver(OpenOptions {
        roots: bare_machine(),
        reopen_after: Duration::from_millis(800),
        ..OpenOptions::default()
    });
    let before = ours.devices().unwrap().devices;
    assert!(ours.wait_events(Duration::from_millis(600)).unwrap().is_empty());
    for state in ["lost", "removed"] {
        say(&format!("{{untilOpenedAnew: true, gpus: {{0: {{state: {state}}}}}}}"));
        let of = |uuid: &str, wanted: fn(&HealthEventKind) -> bool| {
            let uuid = uuid.to_owned();
            move |events: &[HealthEvent]| {
                events
                    .iter()
                    .any(|event| event.uuid.as_ref() == Some(&uuid) && wanted(&event.kind))
            }
        };
        let gone = &before[0].uuid;
        wait_for(&ours, of(gone, |kind| matches!(kind, HealthEventKind::Lost { .. })));
        assert!(ours.probe(gone).is_err());
        say("untilOpenedAnew: true");
        wait_for(&ours, of(gone, |kind| *kind == HealthEventKind::Recovered));
        assert!(ours.probe(gone).is_ok());
        assert_eq!(ours.devices().unwrap().devices, before, "after {state}");
    }
}

/// Without persistence mode the driver forgets the memory limits of a GPU that nobody has open.
#[test]
fn the_library_stays_open_where_limits_would_be_lost() {
    scenario("health::child_keeps_limits", "h100:2", &[]);
}

#[test]
#[ignore = "run by its parent"]
fn child_keeps_limits() {
    let ours = driver(OpenOptions {
        roots: bare_machine(),
        reopen_after: Duration::from_millis(300),
        ..OpenOptions::default()
    });
    let gone = ours.devices().unwrap().devices[0].uuid.clone();
    assert!(ours.wait_events(Duration::from_millis(600)).unwrap().is_empty());
    let state = |persistent: bool, lost: &str| {
        say(&format!(
            "{{memoryLimitCalls: both, untilOpenedAnew: true, gpus: {{0: {{{lost}}}, 1: {{persistenceMode: {persistent}}}}}}}"
        ));
    };
    state(false, "state: lost");
    wait_for(&ours, |events| {
        events
            .iter()
            .any(|event| matches!(event.kind, HealthEventKind::Lost { .. }))
    });
    state(false, "");
    assert_eq!(ours.wait_events(Duration::from_millis(1_500)).unwrap(), []);
    assert!(ours.probe(&gone).is_err());
    state(true, "");
    wait_for(&ours, |events| {
        events.iter().any(|event| event.kind == HealthEventKind::Recovered)
    });
    assert!(ours.probe(&gone).is_ok());
}

#[test]
fn the_driver_goes_is_upgraded_and_returns() {
    scenario("health::child_outlives_the_driver", "t4:2", &[]);
}

#[test]
#[ignore = "run by its parent"]
fn child_outlives_the_driver() {
    let ours = bare_driver();
    let before = ours.devices().unwrap();
    assert!(ours.wait_events(Duration::from_millis(600)).unwrap().is_empty());
    for (fault, words) in [
        ("driver-not-loaded", "Driver Not Loaded"),
        ("version-mismatch", "Driver/library version mismatch"),
    ] {
        say(&format!("library: {fault}"));
        let events = wait_for(&ours, |events| !events.is_empty());
        assert_eq!(events[0].uuid, None);
        let HealthEventKind::Lost { reason } = &events[0].kind else {
            panic!("{events:?}")
        };
        assert!(reason.contains(words), "{reason}");
        let error = ours.devices().unwrap_err();
        assert!(error.is_driver_gone() && error.to_string().contains(words), "{error}");
        assert!(ours.samples().is_err());
        say("");
        let events = wait_for(&ours, |events| {
            events.iter().any(|e| e.kind == HealthEventKind::InventoryChanged)
        });
        assert_eq!(events[0].kind, HealthEventKind::Recovered);
        assert_eq!(ours.devices().unwrap().devices, before.devices);
    }
    say("library: no-permission");
    let error = ours.devices().unwrap_err();
    assert!(error.to_string().contains("NO_PERMISSION"), "{error}");
}

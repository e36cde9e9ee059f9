//! The dashboard and the alerts in `deploy/` use existing metrics, in expressions that Prometheus' own
//! `promtool` accepts, and the alerts fire when they should.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::*;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(file(name)).expect(name)
}

/// Names of metrics in a text.
fn names(text: &str) -> BTreeSet<&str> {
    let is_part = |character: char| character.is_ascii_lowercase() || character == '_';
    let words = text.split(|character: char| !(is_part(character) || character.is_ascii_digit()));
    words.filter(|word| word.starts_with("memleak_")).collect()
}

/// Runs `promtool` and returns what it prints.
#[track_caller]
fn promtool(arguments: &[&str], path: &Path) -> String {
    let output = Command::new("promtool")
        .args(arguments)
        .arg(path)
        .output()
        .expect("apt-get install prometheus");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

/// All metrics that a page can have, with their series.
fn pages() -> String {
    let mut sampled = samples::judged();
    sampled.sampling = leak_report::model::Sampling::Bytes(1024);
    sampled.overhead = Some(leak_report::model::Overhead::default());
    sampled.targets[0].memory = Some(Default::default());
    let counts = Counts::default();
    [
        page::of_report(&samples::full(), 20),
        page::of_report(&sampled, 20),
        page::of_push(&counts),
    ]
    .concat()
}

/// Expressions of the dashboard, with a value in place of each of its variables.
fn expressions(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array()).flatten();
    let expression = |target: &Value| {
        let text = target["expr"].as_str().unwrap();
        let text = text.replace("$__rate_interval", "5m").replace("$__range", "3h");
        text.replace("$instance", ".*")
    };
    targets.map(expression).collect()
}

/// Dashboard and alerts name only metrics that a page has, and the dashboard shows at least 20 of them.
#[test]
fn metrics_that_exist() {
    let pages = pages();
    let known: BTreeSet<&str> = pages
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .collect();
    let dashboard = text("deploy/grafana-dashboard.json");
    for used in [&dashboard, &text("deploy/prometheus-rules.yml")] {
        let unknown: Vec<_> = names(used).difference(&known).copied().collect();
        assert_eq!(unknown, Vec::<&str>::new());
    }
    let shown = names(&dashboard).intersection(&known).count();
    assert!(shown >= 20, "{shown} of {}", known.len());
}

/// Each label in a legend of the dashboard is a label of a metric in the legend's expression.
#[test]
fn labels_that_exist() {
    let dashboard: Value = serde_json::from_str(&text("deploy/grafana-dashboard.json")).unwrap();
    let pages = pages();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let (expression, legend) = (
                target["expr"].as_str().unwrap(),
                target["legendFormat"].as_str().unwrap(),
            );
            for part in legend.split("{{").skip(1) {
                let label = part.split("}}").next().unwrap();
                let mut metrics = names(expression).into_iter();
                let has = |metric: &str| {
                    let mut series = pages
                        .lines()
                        .filter(|line| line.starts_with(&format!("{metric}{{")));
                    series.any(|line| line.contains(&format!("{label}=\"")))
                };
                // Prometheus itself adds `instance`.
                assert!(label == "instance" || metrics.any(has), "{label} of {expression}");
            }
        }
    }
}

/// Panels have unique ids and do not overlap, and all expressions are PromQL.
#[test]
fn dashboard_is_whole() {
    let dashboard: Value = serde_json::from_str(&text("deploy/grafana-dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    let mut taken = BTreeSet::new();
    for panel in panels {
        let at = |side: &str| panel["gridPos"][side].as_u64().unwrap();
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(
                    x < 24 && taken.insert((x, y)),
                    "{} lies on another",
                    panel["title"]
                );
            }
        }
    }
    let expressions = expressions(&dashboard);
    assert!(expressions.len() > 25, "{}", expressions.len());
    let rules: Vec<_> = expressions
        .iter()
        .enumerate()
        .map(|(number, expression)| json!({"record": format!("panel:{number}"), "expr": expression}))
        .collect();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.yml");
    // JSON is YAML.
    let groups = json!({"groups": [{"name": "dashboard", "rules": rules}]});
    fs::write(&path, groups.to_string()).unwrap();
    let checked = promtool(&["check", "rules"], &path);
    assert!(
        checked.contains(&format!("{} rules found", expressions.len())),
        "{checked}"
    );
}

/// Grafana's own model of dashboards (grafana-foundation-sdk of PyPI) reads the dashboard, and knows
/// everything in it.
#[test]
fn dashboard_by_grafana() {
    let output = Command::new("/usr/bin/python3")
        .arg(file("tests/read_dashboard.py"))
        .arg(file("deploy/grafana-dashboard.json"))
        .env("PYTHONPATH", file("target/python"))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tests/setup.sh test\n{errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("memleak: 21 panels"), "{text}");
}

/// Alerts fire at leaks, losses and costs, and not at caches and saw-teeth.
#[test]
fn alerts_do_what_they_promise() {
    let rules = file("deploy/prometheus-rules.yml");
    let checked = promtool(&["check", "rules"], &rules);
    assert!(checked.contains("8 rules found"), "{checked}");
    promtool(&["test", "rules"], &file("tests/prometheus_rules_test.yml"));
    let tests = text("tests/prometheus_rules_test.yml");
    for line in text("deploy/prometheus-rules.yml").lines() {
        if let Some(alert) = line.trim().strip_prefix("- alert: ") {
            assert!(
                tests.contains(&format!("alertname: {alert}\n")),
                "{alert} has no test"
            );
        }
    }
}

/// Prometheus' `promtool` has no complaint about a page.
#[test]
fn pages_by_promtool() {
    use std::io::Write as _;
    for report in [samples::full(), samples::judged()] {
        let mut promtool = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("apt-get install prometheus");
        let page = page::of_report(&report, 20);
        promtool.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
        let output = promtool.wait_with_output().unwrap();
        let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            (output.status.success(), complaints.as_str()),
            (true, ""),
            "{page}"
        );
    }
}

//! Runs the commands of a page in order, in one shell, as a reader would paste them.
//!
//! Each page has its own folder with the files that the page shows, and with `limits.yaml`, a copy
//! of `examples/config/tenants.yaml`, for pages that show no file of that name; `/etc/tollgate` is
//! a folder with the same file. The programs are those of the build; free ports replace the ports
//! of the pages, in commands and in files. A command that serves runs in the background, until the
//! page starts another of its kind.
//!
//! In `console` blocks, the lines below a command are its output: each must appear, in this order,
//! with any text in place of `...`; a command whose output begins with `error:` must fail. In `sh`
//! blocks, a comment that begins with a status (`# 429`) is the status that curl prints. Commands
//! in the text are run or checked, too, if they start as in [`INLINE`].

use crate::{
    files,
    markdown::{Page, codes},
    pages, report, root, venv,
};
use regex::Regex;
use std::{
    fs,
    os::unix::{fs::symlink, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};
use tollgate_rig::Port;

/// Commands that no test can run, each with the reason. The test still checks the names in them.
const NOT_RUN: [(&str, &str); 9] = [
    ("apt-get install ", "changes the machine"),
    ("cargo add ", "needs a project of the reader"),
    ("cargo deny ", "needs a database of the network"),
    ("cargo install ", "builds for minutes"),
    ("cargo run --release -p tollgate-bench", "measures for minutes"),
    ("cargo test ", "builds for minutes; ./test runs it"),
    ("cargo doc ", "./test runs it"),
    ("perf ", "needs the counters of a real processor"),
    ("./test", "runs this test"),
];

/// Ports that pages use, other than 3000.
const PORTS: [u16; 7] = [6070, 6379, 6380, 8000, 8080, 8081, 10000];

/// Commands that run until they are stopped, and the port that each serves.
const SERVERS: [(&str, u16); 8] = [
    ("tollgate serve", 8080),
    ("axum_limits", 3000),
    ("first_limit", 3000),
    ("quickstart", 3000),
    ("envoy ", 10000),
    ("redis-server", 6379),
    ("python3 ", 8000),
    ("nginx", 8000),
];

/// Programs that commands may call, other than those that are mapped and those that serve.
const PROGRAMS: [&str; 16] = [
    "auth=",
    "cat",
    "chmod",
    "cp",
    "curl",
    "echo",
    "for",
    "grpcurl",
    "head",
    "id=",
    "kill",
    "mkdir",
    "openssl",
    "promtool",
    "redis-cli",
    "tollgate",
];

/// Beginnings of inline code that is a command to run or check, and not only a command's name.
const INLINE: [&str; 6] = [
    "cargo ",
    "tollgate compare ",
    "tollgate explain ",
    "tollgate table ",
    "promtool ",
    "openssl ",
];

/// A command of a page, and its output on the page.
struct Step {
    line: usize,
    command: String,
    output: Vec<String>,
    status: Option<String>,
    /// Whether it is in the text, not in a block.
    is_inline: bool,
}

#[test]
fn every_command_runs() {
    let mut running = Vec::new();
    let mut mistakes = Vec::new();
    for page in pages() {
        let steps = steps(&page);
        let (to_run, rest): (Vec<_>, Vec<_>) = steps.into_iter().partition(|step| !is_listed(step));
        mistakes.extend(rest.iter().filter_map(|step| missing(&page, step)));
        if !to_run.is_empty() {
            running.push(thread::spawn(move || run(&page, &to_run)));
        }
        if running.len() == 2 {
            mistakes.extend(running.remove(0).join().unwrap());
        }
    }
    mistakes.extend(running.into_iter().flat_map(|page| page.join().unwrap()));
    report(&mistakes);
}

/// Tells whether a command is only checked.
fn is_listed(step: &Step) -> bool {
    let lacks_feature = !cfg!(feature = "otel") && step.command.contains("--otlp");
    let is_mentioned = step.is_inline && step.command.starts_with("cargo ");
    let is_not_run = |(start, _): &(&str, &str)| step.command.starts_with(start);
    lacks_feature || is_mentioned || NOT_RUN.iter().any(is_not_run)
}

/// Extracts the commands of a page.
fn steps(page: &Page) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for block in &page.blocks {
        let is_console = block.language == "console";
        if !is_console && !["sh", "bash"].contains(&block.language.as_str()) {
            continue;
        }
        let mut goes_on = false;
        for (offset, text) in block.text.lines().enumerate() {
            let start = if is_console { text.strip_prefix("$ ") } else { Some(text) };
            if goes_on {
                steps.last_mut().unwrap().command += &format!("\n{text}");
            } else if let Some(text) = start.filter(|text| !text.trim().is_empty()) {
                if text.starts_with('#') {
                    continue;
                }
                let (command, comment) = text.split_once(" # ").unwrap_or((text, ""));
                let digits = comment.chars().take_while(char::is_ascii_digit).count();
                steps.push(Step {
                    line: block.line + 1 + offset,
                    command: command.trim_end().into(),
                    output: Vec::new(),
                    status: (digits == 3).then(|| comment[..3].into()),
                    is_inline: false,
                });
            } else if !text.is_empty() {
                steps.last_mut().unwrap().output.push(text.into());
                continue;
            }
            goes_on = text.ends_with('\\');
        }
    }
    for (line, text) in &page.prose {
        let commands = codes(text).into_iter().map(|code| code.text.replace('\n', " "));
        let commands = commands.filter(|code| INLINE.iter().any(|start| code.starts_with(start)));
        steps.extend(commands.map(|command| Step {
            line: *line,
            command,
            output: Vec::new(),
            status: None,
            is_inline: true,
        }));
    }
    steps
}

/// Returns an error if a command that is not run names a package, feature, program or test that
/// does not exist.
fn missing(page: &Page, step: &Step) -> Option<String> {
    let words: Vec<&str> = step.command.split_whitespace().collect();
    let after = |flag: &str| {
        let at = words.iter().position(|word| *word == flag)?;
        words.get(at + 1).copied()
    };
    let all = files();
    let has = |path: String| all.iter().any(|file| file.ends_with(&path));
    let manifest = |package: &str| {
        let folders = [format!("crates/{package}"), package.trim_start_matches("tollgate-").into()];
        let mut paths = folders.iter().map(|folder| root().join(folder).join("Cargo.toml"));
        paths.find_map(|path| fs::read_to_string(path).ok())
    };
    let wrong = |what: &str| Some(format!("{}: no {what}: {}", page.at(step.line), step.command));
    if words.starts_with(&["cargo"]) {
        let path = after("--path").map(|path| path.trim_start_matches("crates/"));
        let added = after("add").filter(|name| name.starts_with("tollgate"));
        if words[1] == "add" && added.is_none() {
            return None;
        }
        let package = after("-p").or(path).or(added).unwrap_or("tollgate-cli");
        let Some(manifest) = manifest(package) else { return wrong("package") };
        let features = after("--features").into_iter().flat_map(|names| names.split(','));
        if features.into_iter().any(|name| !manifest.contains(&format!("\n{name} = ["))) {
            return wrong("feature");
        }
        let program = after("--bin").filter(|name| *name != "NAME");
        if program.is_some_and(|name| !manifest.contains(&format!("name = \"{name}\""))) {
            return wrong("program");
        }
        let test = after("--test").map(|name| format!("tests/{name}"));
        if test.is_some_and(|test| !has(format!("{test}.rs")) && !has(format!("{test}/main.rs"))) {
            return wrong("test");
        }
        let tables = fs::read_to_string(root().join("bench/src/main.rs")).unwrap();
        let rest = words.iter().skip_while(|word| **word != "--").skip(1);
        if package == "tollgate-bench"
            && rest.into_iter().any(|word| !tables.contains(&format!("\"{word}\"")))
        {
            return wrong("such table");
        }
    }
    (words[0] == "./test" && !root().join("test").exists()).then(|| wrong("file")).flatten()
}

/// Runs the commands of a page; returns the failures.
fn run(page: &Page, steps: &[Step]) -> Vec<String> {
    // The port of the examples is fixed in their text, so only one page at a time can use it.
    let lock = fs::File::create(std::env::temp_dir().join("tollgate-docs-port-3000")).unwrap();
    if steps.iter().any(|step| step.command.contains(":3000")) {
        lock.lock().unwrap();
    }
    let ports: Vec<(u16, Port)> = PORTS.map(|port| (port, Port::reserve())).into();
    let folder = tempfile::tempdir().unwrap();
    let place = Place { page, folder: folder.path(), ports: &ports };
    if let Err(mistakes) = place.prepare(steps) {
        return mistakes;
    }
    let mut shell = Command::new("timeout");
    shell.args(["--kill-after=5", "120", "bash", "script"]).current_dir(folder.path());
    shell.env("PATH", place.search_path()).env("HOME", folder.path());
    shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // A separate process group, so that `timeout` ends every process that the page has started.
    let _status = shell.process_group(0).status().unwrap();
    let numbered = steps.iter().enumerate();
    numbered.filter_map(|(number, step)| place.mistake(number, step)).take(1).collect()
}

/// The environment in which a page runs.
struct Place<'a> {
    page: &'a Page,
    folder: &'a Path,
    ports: &'a [(u16, Port)],
}

impl Place<'_> {
    /// Writes the files of the page, the programs, and the script.
    fn prepare(&self, steps: &[Step]) -> Result<(), Vec<String>> {
        for name in ["bin", "out", "work"] {
            fs::create_dir(self.folder.join(name)).unwrap();
        }
        let work = self.folder.join("work");
        for name in ["crates", "docs"] {
            symlink(root().join(name), work.join(name)).unwrap();
        }
        for file in files().iter().filter(|file| file.starts_with("examples")) {
            fs::create_dir_all(work.join(file).parent().unwrap()).unwrap();
            let text = fs::read_to_string(root().join(file)).unwrap();
            fs::write(work.join(file), self.with_ports(&text)).unwrap();
        }
        let limits = root().join("examples/config/tenants.yaml");
        fs::create_dir(work.join("etc")).unwrap();
        for name in ["limits.yaml", "etc/limits.yaml"] {
            fs::copy(&limits, work.join(name)).unwrap();
        }
        for block in &self.page.blocks {
            if let Some(file) = block.file.as_ref().filter(|file| !file.contains('/')) {
                fs::write(work.join(file), self.with_ports(&block.text)).unwrap();
            }
        }
        let shim = self.with_ports(include_str!("tollgate.sh"));
        let python = venv().join("bin/python");
        let grpcurl = format!("{}/tests/docs/servers/grpcurl.py", env!("CARGO_MANIFEST_DIR"));
        self.program("tollgate", &shim.replace("PROGRAM", env!("CARGO_BIN_EXE_tollgate")));
        self.program("grpcurl", &format!("exec {} {grpcurl} \"$@\"\n", python.display()));
        let (mut script, mut mistakes) = (include_str!("prelude.sh").to_owned(), Vec::new());
        for (number, step) in steps.iter().enumerate() {
            let line = self.mapped(&step.command).and_then(|command| self.line(number, &command));
            match line {
                Ok(line) => script += &line,
                Err(text) => mistakes.push(format!("{}: {text}", self.page.at(step.line))),
            }
        }
        fs::write(self.folder.join("script"), script).unwrap();
        if mistakes.is_empty() { Ok(()) } else { Err(mistakes) }
    }

    fn program(&self, name: &str, text: &str) {
        let path = self.folder.join("bin").join(name);
        fs::write(&path, format!("#!/bin/bash\n{text}")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(path, mode).unwrap();
    }

    fn search_path(&self) -> String {
        let venv = venv().join("bin");
        let path = std::env::var("PATH").unwrap_or_default();
        format!("{}:{}:{path}:/usr/sbin", self.folder.join("bin").display(), venv.display())
    }

    /// Returns one line of the script.
    fn line(&self, number: usize, command: &str) -> Result<String, String> {
        let is_name = |name: &str| name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
        let is_variable = |word: &&str| word.split_once('=').is_some_and(|(name, _)| is_name(name));
        let words: Vec<&str> = command.split(' ').skip_while(is_variable).collect();
        let plain = words.join(" ");
        let server = SERVERS
            .iter()
            .find(|(name, _)| plain.starts_with(name) || plain.contains(&format!("/{name}")));
        if server.is_none() && !PROGRAMS.iter().any(|name| plain.starts_with(name)) {
            return Err(format!("a command that the test does not know: {command}"));
        }
        let command = self.with_ports(command.trim_end_matches('&').trim_end());
        let command = command.replace("/etc/tollgate", "etc");
        fs::write(self.folder.join(format!("out/{number}.sh")), command).unwrap();
        Ok(match server {
            Some((name, port)) => {
                let port = self.with_ports(&format!(":{port}"));
                format!("serve {number} '{name}' {}\n", port.trim_start_matches(':'))
            }
            None => format!("step {number}\n"),
        })
    }

    /// Returns the command that runs instead of one that would build a program first. `cargo run`
    /// alone starts the program that the page shows as `src/main.rs`; otherwise it starts the
    /// service.
    fn mapped(&self, command: &str) -> Result<String, String> {
        let Some(rest) = command.strip_prefix("cargo run") else { return Ok(command.into()) };
        let words: Vec<&str> = rest.split_whitespace().collect();
        let after =
            |flag: &str| words.iter().position(|word| *word == flag).map(|at| words[at + 1]);
        let shown =
            self.page.blocks.iter().find(|block| block.file.as_deref() == Some("src/main.rs"));
        match (after("-p"), after("--bin"), shown.filter(|_| !words.contains(&"--release"))) {
            (None, None, None) => Ok("tollgate serve".into()),
            (None, None, Some(block)) => example(&example_like(&block.text)?),
            (Some("tollgate-examples"), Some(name), _) => example(name),
            _ => Err(format!("the test does not know which program this is: {command}")),
        }
    }

    /// Returns the text with free ports in place of its own.
    fn with_ports(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (port, free) in self.ports {
            let before = r#":|-p |--port |http\.server |port_value: |", "#;
            let here = Regex::new(&format!(r"({before}){port}\b")).unwrap();
            let free = format!("${{1}}{}", free.number());
            text = here.replace_all(&text, free).into_owned();
        }
        text
    }

    /// Returns the mistake in the result of a step.
    fn mistake(&self, number: usize, step: &Step) -> Option<String> {
        let read = |kind: &str| {
            let path = self.folder.join(format!("out/{number}.{kind}"));
            fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        };
        let output = read("out").unwrap_or_default().replace('\r', "");
        let result = read("rc").unwrap_or_else(|_| "did not end".into());
        let wrong = |text: &str| {
            let at = self.page.at(step.line);
            Some(format!("{at}: {text}: {}\n--- output\n{output}---", step.command))
        };
        let fails = step.output.first().is_some_and(|shown| shown.starts_with("error:"));
        if fails == (result.trim() == "0") {
            return wrong(&format!("exit code {}", result.trim()));
        }
        if let Some(status) = &step.status
            && !output.lines().any(|line| line.starts_with(&format!("HTTP/1.1 {status}")))
        {
            return wrong(&format!("no status {status}"));
        }
        let mut lines = output.lines();
        step.output
            .iter()
            .find(|shown| !lines.any(|line| is_like(line, shown)))
            .and_then(|shown| wrong(&format!("no line like {shown:?}")))
    }
}

/// Tells whether a line matches the page.
fn is_like(line: &str, shown: &str) -> bool {
    let pattern = regex::escape(shown.trim()).replace(r"\.\.\.", ".*");
    Regex::new(&pattern).unwrap().is_match(line)
}

/// Returns the name of the example with this text below its first comment.
fn example_like(text: &str) -> Result<String, String> {
    let is_like = |file: &&PathBuf| {
        file.starts_with("examples")
            && fs::read_to_string(root().join(file)).unwrap().ends_with(text)
    };
    let file =
        files().iter().find(is_like).cloned().ok_or("no example has the text of src/main.rs")?;
    Ok(file.file_stem().unwrap().to_str().unwrap().into())
}

/// Returns the built program of an example. `cargo test --workspace` builds it; otherwise this
/// builds it.
fn example(name: &str) -> Result<String, String> {
    let program = Path::new(env!("CARGO_BIN_EXE_tollgate")).with_file_name(name);
    if !program.exists() {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args([
            "build",
            "--quiet",
            "--all-features",
            "-p",
            "tollgate-examples",
            "--bin",
            name,
        ]);
        let built = cargo.current_dir(root()).status().unwrap();
        if !built.success() {
            return Err(format!("there is no example {name}"));
        }
    }
    Ok(program.display().to_string())
}

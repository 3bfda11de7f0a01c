//! From files to a [`Config`].

mod adaptive;
mod domain;
mod forward_auth;
mod limit;
mod server;

use super::{
    Config, Defaults, Domain, ForwardAuth, Place, ServerSettings, StoreSettings,
    error::{ConfigErrors, Errors, Source},
    fields::Reader,
    judge,
    keys::FILE,
    suggest::nearest,
    tree::{Node, Spot, shown},
    yaml,
};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};
use tollgate_redis::read_regular;

/// The largest file, in bytes.
pub(crate) const FILE_MAX: usize = 16 << 20;
/// All files together, in bytes.
const TOTAL_MAX: usize = 64 << 20;
/// The most files.
const FILES_MAX: usize = 4096;
/// A folder must have fewer entries than this, of any name.
const ENTRIES_MAX: usize = 65_536;

impl Config {
    /// Reads files, and folders: of a folder every `.yaml` and `.yml` file in the order of the
    /// names, without those that start with a dot and without folders in it. Links are followed.
    ///
    /// # Errors
    ///
    /// All that is wrong, with its place.
    pub fn read(paths: &[PathBuf]) -> Result<Self, ConfigErrors> {
        let mut errors = Errors::default();
        if paths.is_empty() {
            errors.add(
                Place::default(),
                "no configuration file is given; name a file or a directory",
            );
        }
        let mut total = 0;
        for path in paths {
            for file in files_of(path, &mut errors) {
                read_file(&file, &mut total, &mut errors);
            }
        }
        errors.is_partial = !errors.is_empty();
        Self::from_sources(errors)
    }

    /// Reads one text. The name is for messages.
    ///
    /// # Errors
    ///
    /// All that is wrong, with its place.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate_server::config::Config;
    ///
    /// let text = "
    /// domain: shop
    /// descriptors:
    ///   - key: user
    ///     rate_limit: {unit: minute, requests_per_unit: 20}
    /// ";
    /// let config = Config::from_text("shop.yaml", text)?;
    /// assert_eq!(config.domains[0].name, "shop");
    ///
    /// let errors = Config::from_text("shop.yaml", "domian: shop").unwrap_err();
    /// assert!(errors.to_string().contains("did you mean 'domain'?"));
    /// # Ok::<(), tollgate_server::config::ConfigErrors>(())
    /// ```
    pub fn from_text(name: &str, text: &str) -> Result<Self, ConfigErrors> {
        Self::from_texts(&[(name, text)])
    }

    /// Reads several texts, as if each were a file.
    ///
    /// # Errors
    ///
    /// All that is wrong, with its place.
    pub fn from_texts(texts: &[(&str, &str)]) -> Result<Self, ConfigErrors> {
        let mut errors = Errors::default();
        for (name, text) in texts {
            let name: Arc<str> = (*name).into();
            if text.len() > FILE_MAX {
                errors.add(whole(&name), too_large());
                errors.is_partial = true;
                continue;
            }
            errors.sources.push(Source { name, text: (*text).to_owned() });
        }
        Self::from_sources(errors)
    }

    /// Reads the sources that have been collected.
    fn from_sources(mut errors: Errors) -> Result<Self, ConfigErrors> {
        // The texts are lent to the parser while errors are collected, which show lines of them.
        let mut parts = Vec::new();
        for index in 0..errors.sources.len() {
            let source = &errors.sources[index];
            let (name, mut faults) = (source.name.clone(), Vec::new());
            let text = source.text.strip_prefix('\u{feff}').unwrap_or(&source.text);
            let result = yaml::read(text, &mut faults);
            let mut reader = Reader { file: name, errors: &mut errors };
            for (spot, text) in faults {
                reader.error(spot, text);
            }
            match result {
                Err((spot, text)) => {
                    reader.error(spot, format!("error loading config file: {text}"));
                    reader.errors.is_partial = true;
                }
                Ok(root) => parts.extend(file(&mut reader, root.as_ref())),
            }
        }
        let config = assemble(parts, &mut errors);
        judge::judge(&config, &mut errors);
        errors.finish(config)
    }
}

fn whole(name: &Arc<str>) -> Place {
    Place::of(name, Spot::default())
}

fn too_large() -> String {
    format!("the file is larger than {} MiB; split it", FILE_MAX >> 20)
}

/// Returns the files of a folder, or the path itself.
fn files_of(path: &Path, errors: &mut Errors) -> Vec<PathBuf> {
    if !path.is_dir() {
        return vec![path.to_owned()];
    }
    let name: Arc<str> = path.display().to_string().into();
    let listed = fs::read_dir(path).and_then(|entries| {
        entries.map(|entry| Ok(entry?.path())).take(ENTRIES_MAX).collect::<io::Result<Vec<_>>>()
    });
    let mut files = match listed {
        Ok(files) if files.len() < ENTRIES_MAX => files,
        Ok(_) => {
            errors.add(
                whole(&name),
                format!("the directory has {ENTRIES_MAX} files or more; use fewer"),
            );
            return Vec::new();
        }
        Err(error) => {
            errors.add(whole(&name), format!("cannot list the directory: {error}"));
            return Vec::new();
        }
    };
    // A folder named `x.yaml` is not a configuration; a broken link stays in the list, so that it
    // is reported.
    files.retain(|path| is_config_name(path) && !path.is_dir());
    files.sort();
    if files.is_empty() {
        errors.add(
            whole(&name),
            "the directory has no .yaml or .yml file; name another one, or add a file",
        );
    }
    files
}

/// Tells whether a file of a folder belongs to the configuration.
pub(crate) fn is_config_name(path: &Path) -> bool {
    let hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    !hidden && path.extension().is_some_and(|end| end == "yaml" || end == "yml")
}

/// Returns the name in the same folder that is nearest to the name of a file that is not there.
fn similar(path: &Path) -> Option<String> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let entries = fs::read_dir(folder.unwrap_or(Path::new("."))).ok()?.take(ENTRIES_MAX);
    let names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    nearest(path.file_name()?.to_str()?, names.iter().map(String::as_str)).map(str::to_owned)
}

fn read_file(path: &Path, total: &mut usize, errors: &mut Errors) {
    let name: Arc<str> = path.display().to_string().into();
    if errors.sources.len() >= FILES_MAX {
        errors.add(whole(&name), format!("more than {FILES_MAX} files; merge some"));
        return;
    }
    let bytes = match read_regular(path, FILE_MAX) {
        Ok(bytes) => bytes,
        Err(error) => {
            let text = match (error.kind(), similar(path)) {
                (io::ErrorKind::FileTooLarge, _) => too_large(),
                (io::ErrorKind::NotFound, Some(other)) => {
                    format!("there is no such file; did you mean '{other}'?")
                }
                _ => format!("cannot read the file: {error}"),
            };
            errors.add(whole(&name), text);
            return;
        }
    };
    *total += bytes.len();
    if *total > TOTAL_MAX {
        errors.add(
            whole(&name),
            format!(
                "the files are larger than {} MiB together; remove some rules",
                TOTAL_MAX >> 20
            ),
        );
        return;
    }
    match String::from_utf8(bytes) {
        Ok(text) => errors.sources.push(Source { name, text }),
        Err(error) => {
            let index = error.utf8_error().valid_up_to();
            errors.add(
                whole(&name),
                format!("the file is not UTF-8 at byte {index}; save it as UTF-8"),
            );
        }
    }
}

/// The contents of one file.
struct Parts {
    file: Arc<str>,
    domain: Option<(Domain, Sharing)>,
    forward_auth: Vec<ForwardAuth>,
    server: Option<(ServerSettings, Spot)>,
    stores: Vec<StoreSettings>,
}

/// How a domain is shared with other files.
struct Sharing {
    merge: bool,
    defaults: Option<Spot>,
}

fn file(reader: &mut Reader<'_>, root: Option<&Node>) -> Option<Parts> {
    let root = match root {
        Some(root) if !root.is_null() => root,
        _ => {
            reader
                .error(Spot::default(), "config file cannot have empty domain; the file is empty");
            return None;
        }
    };
    let fields = reader.section(root, &FILE)?;
    let forward_auth = forward_auth::forward_auth(reader, &fields);
    let server = reader
        .inner(&fields, "server")
        .map(|inner| (server::server(reader, &inner), fields.spot_of("server")));
    let stores = server::stores(reader, &fields);
    let domain = domain::domain(reader, &fields).map(|domain| {
        let merge = reader.flag(&fields, "merge").unwrap_or(false);
        let defaults = fields.entry("defaults").map(|entry| entry.spot);
        (domain, Sharing { merge, defaults })
    });
    Some(Parts { file: reader.file.clone(), domain, forward_auth, server, stores })
}

/// Puts the files together.
fn assemble(parts: Vec<Parts>, errors: &mut Errors) -> Config {
    let mut config = Config::default();
    let mut sharing: Vec<Sharing> = Vec::new();
    let mut server_in: Option<Place> = None;
    for part in parts {
        if let Some((settings, spot)) = part.server {
            let place = Place::of(&part.file, spot);
            match &server_in {
                None => (config.server, server_in) = (settings, Some(place)),
                Some(first) => {
                    errors.add(place, format!("'server' is already defined in {first}; keep one"))
                }
            }
        }
        config.forward_auth.extend(part.forward_auth);
        config.stores.extend(part.stores);
        let Some((domain, shared)) = part.domain else { continue };
        match config.domains.iter().position(|known| known.name == domain.name) {
            None => {
                config.domains.push(domain);
                sharing.push(shared);
            }
            Some(index) => {
                let known = (&mut config.domains[index], &mut sharing[index]);
                join(known, (domain, shared), errors);
            }
        }
    }
    config
}

/// Adds a domain to one of the same name, if both want that.
fn join(known: (&mut Domain, &mut Sharing), more: (Domain, Sharing), errors: &mut Errors) {
    let ((known, sharing), (more, shared)) = (known, more);
    if !(sharing.merge && shared.merge) {
        let (name, first) = (shown(&more.name), &known.at);
        let text = format!(
            "duplicate domain '{name}' in config file; it is already defined in {first}: use \
             another name, or write 'merge: true' in both"
        );
        errors.add(more.at, text);
        return;
    }
    match (sharing.defaults, shared.defaults) {
        (Some(_), Some(spot)) => {
            let text = "only one of the files of a merged domain may have 'defaults'";
            errors.add(Place::of(&more.at.file, spot), text);
        }
        (None, Some(_)) => {
            known.defaults = more.defaults;
            sharing.defaults = shared.defaults;
        }
        (_, None) => debug_assert_eq!(more.defaults, Defaults::default()),
    }
    known.descriptors.extend(more.descriptors);
}

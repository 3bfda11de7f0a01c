//! Judges `parents`: names of limits of the same domain that are charged too.

use super::{LIMITS_MAX, did_you_mean};
use crate::config::{Descriptor, Domain, ValueMatch, error::Errors, tree::shown};
use std::collections::{HashMap, HashSet, VecDeque};

/// The longest chain of parents.
const LEVELS_MAX: usize = 8;

/// A limit that has a name.
struct Named<'a> {
    /// How many limits have it.
    count: usize,
    /// The descriptor of the first of them.
    owner: &'a Descriptor,
    /// The keys of the path to it whose values it tells apart.
    free: Vec<&'a str>,
}

type Names<'a> = HashMap<&'a str, Named<'a>>;

/// Notes what is wrong with the parents of a domain.
pub(super) fn judge(domain: &Domain, errors: &mut Errors) {
    let mut names = Names::new();
    collect(&domain.descriptors, &mut Vec::new(), &mut names);
    let levels = levels(&names);
    let judge = Judge { domain, names: &names, levels: &levels };
    judge.descend(&domain.descriptors, &mut Vec::new(), errors);
}

fn collect<'a>(
    descriptors: &'a [Descriptor],
    path: &mut Vec<&'a Descriptor>,
    names: &mut Names<'a>,
) {
    for descriptor in descriptors {
        path.push(descriptor);
        for name in descriptor.limits.iter().filter_map(|limit| limit.name.as_deref()) {
            let free = || {
                let is_free = |node: &&&Descriptor| !matches!(node.value, ValueMatch::Exact(_));
                path.iter().filter(is_free).map(|node| node.key.as_str()).collect()
            };
            let named = names.entry(name).or_insert_with(|| Named {
                count: 0,
                owner: descriptor,
                free: free(),
            });
            named.count += 1;
        }
        collect(&descriptor.descriptors, path, names);
        path.pop();
    }
}

/// Counts the levels above each named limit. Those whose parents lead in a circle are not there.
fn levels<'a>(names: &Names<'a>) -> HashMap<&'a str, usize> {
    let mut open: HashMap<&str, usize> = HashMap::new();
    let mut children: HashMap<&str, Vec<&'a str>> = HashMap::new();
    for (name, named) in names {
        let parents = named.owner.parents.iter().filter(|parent| names.contains_key(&***parent));
        for parent in parents.clone() {
            children.entry(parent).or_default().push(name);
        }
        open.insert(name, parents.count());
    }
    let mut levels: HashMap<&'a str, usize> = HashMap::new();
    let mut ready: VecDeque<(&'a str, usize)> =
        names.keys().filter(|name| open[**name] == 0).map(|name| (*name, 0)).collect();
    while let Some((name, level)) = ready.pop_front() {
        levels.insert(name, level);
        for child in children.get(name).into_iter().flatten() {
            // The last parent to be done is the deepest: they are done in the order of levels.
            if let Some(waiting) = open.get_mut(child) {
                *waiting -= 1;
                if *waiting == 0 {
                    ready.push_back((child, level + 1));
                }
            }
        }
    }
    levels
}

struct Judge<'a> {
    domain: &'a Domain,
    names: &'a Names<'a>,
    levels: &'a HashMap<&'a str, usize>,
}

impl<'a> Judge<'a> {
    fn descend(&self, descriptors: &'a [Descriptor], path: &mut Vec<&'a str>, errors: &mut Errors) {
        for descriptor in descriptors {
            path.push(&descriptor.key);
            let mut seen = HashSet::new();
            for parent in &descriptor.parents {
                let wrong = match seen.insert(parent.as_str()) {
                    true => self.parent(descriptor, parent, (path, errors)),
                    false => {
                        Err(format!("the parent '{}' is listed twice; remove one", shown(parent)))
                    }
                };
                if let Err(text) = wrong {
                    errors.add(descriptor.at.clone(), text);
                }
            }
            if self.count(descriptor) > LIMITS_MAX {
                let text = format!(
                    "more than {LIMITS_MAX} limits in one decision, parents included; remove some"
                );
                errors.add(descriptor.at.clone(), text);
            }
            self.descend(&descriptor.descriptors, path, errors);
            path.pop();
        }
    }

    fn parent(
        &self,
        child: &Descriptor,
        parent: &str,
        (path, errors): (&[&str], &Errors),
    ) -> Result<(), String> {
        let (name, domain) = (shown(parent), shown(&self.domain.name));
        if child.limits.iter().any(|limit| limit.name.as_deref() == Some(parent)) {
            return Err(format!("the limit '{name}' cannot be its own parent"));
        }
        let Some(Named { count, free, .. }) = self.names.get(parent) else {
            let hint = did_you_mean(parent, self.names.keys(), errors);
            return Err(format!("there is no limit named '{name}' in domain '{domain}'{hint}"));
        };
        if *count > 1 {
            return Err(format!(
                "{count} limits are named '{name}' in domain '{domain}'; a parent's name must be \
                 unique"
            ));
        }
        if let Some(missing) = free.iter().find(|key| !path.contains(*key)) {
            return Err(format!(
                "the parent '{name}' counts by '{}', which is not on the path to this descriptor",
                shown(missing)
            ));
        }
        match self.levels.get(parent) {
            None => Err(format!("the parents of '{name}' form a cycle; remove one of them")),
            Some(level) if *level >= LEVELS_MAX => Err(format!(
                "the parent '{name}' has {level} levels above it; at most {LEVELS_MAX} are allowed"
            )),
            Some(_) => Ok(()),
        }
    }

    /// Counts the limits of a decision, up to one more than may be.
    fn count(&self, descriptor: &Descriptor) -> usize {
        let own = descriptor.limits.len();
        let mut found: HashSet<&str> = HashSet::new();
        let mut open: Vec<&str> = descriptor.parents.iter().map(String::as_str).collect();
        while let Some(name) = open.pop() {
            if own + found.len() > LIMITS_MAX {
                break;
            }
            if let Some(named) = self.names.get(name)
                && found.insert(name)
            {
                open.extend(named.owner.parents.iter().map(String::as_str));
            }
        }
        own + found.len()
    }
}

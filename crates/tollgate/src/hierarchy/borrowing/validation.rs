//! Checks whether the classes of a borrowing tree go together.

use super::{class::Class, rule::PRIORITIES};
use crate::{
    ConfigError, Quota,
    hierarchy::error::{check_depth, check_name, not_keyed},
};

/// A class as it was declared.
#[derive(Clone, Debug)]
pub(super) struct Declared {
    pub(super) name: Box<str>,
    pub(super) class: Class,
    pub(super) is_keyed: bool,
}

/// A class as it is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InForce {
    pub(super) rate: Quota,
    pub(super) ceiling: Quota,
    pub(super) is_hard: bool,
    pub(super) priority: u8,
}

/// Returns the number of each class's parent; `None` for the root, number 0.
///
/// A parent comes before its children, so there are no cycles.
pub(super) fn parents(all: &[Declared]) -> Result<Vec<Option<usize>>, ConfigError> {
    let mut parents = Vec::with_capacity(all.len());
    let mut depths: Vec<usize> = Vec::with_capacity(all.len());
    for (index, declared) in all.iter().enumerate() {
        let name = &declared.name;
        check_name(name, all[..index].iter().map(|known| &*known.name))?;
        let parent = match (&declared.class.parent, index) {
            (None, 0) => None,
            (None, _) => Some(0),
            (Some(parent), _) => {
                let found = all[..index].iter().position(|known| known.name == *parent);
                Some(found.ok_or_else(|| {
                    ConfigError::new(format!(
                        "the parent \"{parent}\" of \"{name}\" does not exist; declare it first, or \
                         leave it out for the root"
                    ))
                })?)
            }
        };
        let depth = parent.map_or(0, |parent| depths[parent] + 1);
        check_depth(depth, name)?;
        if let Some(above) = parent {
            let first = parents.iter().position(|known| *known == parent).map(|first| &all[first]);
            let clashes = first.is_some_and(|first| first.is_keyed || declared.is_keyed);
            if clashes || all[above].is_keyed && !declared.is_keyed {
                let parent = &all[above].name;
                return Err(ConfigError::new(format!(
                    "\"{name}\" cannot be below \"{parent}\": a class has either declared classes \
                     or one keyed level below it, and a keyed one only a keyed level, because a \
                     key could have the name of a class; put a class between them"
                )));
            }
        }
        parents.push(parent);
        depths.push(depth);
    }
    Ok(parents)
}

/// Checks all classes together, and returns them as they are in force.
pub(super) fn validate(
    all: &[Declared],
    parents: &[Option<usize>],
) -> Result<Vec<InForce>, ConfigError> {
    all.iter().try_for_each(check_alone)?;
    // The guarantees of the classes below each: rates, and bursts.
    let (mut rates, mut bursts) = (vec![0_u128; all.len()], vec![0_u128; all.len()]);
    // Children come after their parents.
    for (index, Declared { name, class, .. }) in all.iter().enumerate().rev() {
        let own = rate_of(&class.rate);
        if rates[index] > own.saturating_add(1) {
            let (rate, sum) = (class.rate, per_second(rates[index]));
            return Err(ConfigError::new(format!(
                "the classes below \"{name}\" are guaranteed {sum} in all, more than its own \
                 {rate}; lower their rates, or raise that of \"{name}\""
            )));
        }
        if let Some(parent) = parents[index] {
            let nodes = u128::from(class.expected.unwrap_or(1));
            let burst = bursts[index].saturating_add(class.rate.capacity().into());
            rates[parent] = rates[parent].saturating_add(own.saturating_mul(nodes));
            bursts[parent] = bursts[parent].saturating_add(burst.saturating_mul(nodes));
        }
    }
    let mut in_force: Vec<InForce> = Vec::with_capacity(all.len());
    for (index, declared) in all.iter().enumerate() {
        let parent = parents[index].map(|parent| in_force[parent].ceiling);
        in_force.push(in_force_of(declared, parent, bursts[index])?);
    }
    Ok(in_force)
}

/// Checks a class without the others.
fn check_alone(declared: &Declared) -> Result<(), ConfigError> {
    let Declared { name, class, is_keyed } = declared;
    let quota = |error| ConfigError::of_part(name, error);
    class.rate.check_countable().map_err(quota)?;
    class.ceiling.map_or(Ok(()), |ceiling| ceiling.check_countable()).map_err(quota)?;
    let priority = class.priority;
    if priority >= PRIORITIES {
        return Err(ConfigError::new(format!(
            "\"{name}\" has priority {priority}; use 0 (first) to 7 (last)"
        )));
    }
    match (is_keyed, class.expected, class.bounded) {
        (false, Some(_), _) => Err(not_keyed(name, "expected")),
        (false, _, Some(_)) => Err(not_keyed(name, "table")),
        (true, None, _) if class.rate.capacity() > 0 || class.rate.count() > 0 => {
            let rate = class.rate;
            Err(ConfigError::new(format!(
                "each node of \"{name}\" is guaranteed {rate}, but the number of nodes is unknown; \
                 add expected(n), or guarantee nothing with a rate of zero"
            )))
        }
        _ => Ok(()),
    }
}

/// Works out a class's ceiling, and checks it. `below` is the bursts of all classes below.
fn in_force_of(
    declared: &Declared,
    parent: Option<Quota>,
    below: u128,
) -> Result<InForce, ConfigError> {
    let Declared { name, class, .. } = declared;
    let (rate, priority) = (class.rate, class.priority);
    let is_hard = class.is_hard.unwrap_or(parent.is_none());
    let needed = below.saturating_add(rate.capacity().into());
    let ceiling = match class.ceiling {
        Some(ceiling) => ceiling,
        None if !is_hard || below == 0 => rate,
        None => rate.burst(u64::try_from(needed).unwrap_or(u64::MAX)),
    };
    ceiling.check().map_err(|error| ConfigError::of_part(name, error))?;
    if is_above(&rate, &ceiling) {
        return Err(ConfigError::new(format!(
            "the ceiling {ceiling} of \"{name}\" is below its guaranteed rate {rate}; raise the \
             ceiling, or lower the rate"
        )));
    }
    if let Some(parent) = parent.filter(|parent| is_above(&ceiling, parent)) {
        return Err(ConfigError::new(format!(
            "the ceiling {ceiling} of \"{name}\" is above its parent's, {parent}; lower it, or \
             raise the parent's"
        )));
    }
    let burst = ceiling.capacity();
    if is_hard && below > 0 && u128::from(burst) < needed {
        return Err(ConfigError::new(format!(
            "the hard ceiling of \"{name}\" has a burst of {burst}, less than {needed}, the bursts \
             of its own rate and of all below: borrowers could use it up and starve what is \
             guaranteed; raise it, lower the burst of the rate, or use soft_ceiling"
        )));
    }
    Ok(InForce { rate, ceiling, is_hard, priority })
}

/// Tells whether one rate is above another, exactly.
fn is_above(one: &Quota, other: &Quota) -> bool {
    let scaled = |a: &Quota, b: &Quota| u128::from(a.count()) * u128::from(b.period_ns());
    scaled(one, other) > scaled(other, one)
}

/// Returns a rate in 2^-64 permits per nanosecond, rounded down: at most 2^64.
fn rate_of(quota: &Quota) -> u128 {
    // OVERFLOW: a checked count is at most its period, which is below 2^55.
    (u128::from(quota.count()) << 64) / u128::from(quota.period_ns().max(1))
}

/// Writes a rate in 2^-64 permits per nanosecond for people to read.
fn per_second(rate: u128) -> String {
    let per_second = rate as f64 / 2_f64.powi(64) * 1e9;
    format!("{}/s", (per_second * 1000.0).round() / 1000.0)
}

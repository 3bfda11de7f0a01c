//! Checks whether the classes of a borrowing tree go together.

use super::{class::Class, rule::PRIORITIES};
use crate::{Limits, Quota, hierarchy::HierarchyError};

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
pub(super) fn parents(all: &[Declared]) -> Result<Vec<Option<usize>>, HierarchyError> {
    let mut parents = Vec::with_capacity(all.len());
    let mut depths: Vec<usize> = Vec::with_capacity(all.len());
    for (index, declared) in all.iter().enumerate() {
        let name = String::from(&*declared.name);
        if all[..index].iter().any(|known| known.name == declared.name) {
            return Err(HierarchyError::NameTwice(name));
        }
        let parent = match (&declared.class.parent, index) {
            (None, 0) => None,
            (None, _) => Some(0),
            (Some(parent), _) => {
                let found = all[..index].iter().position(|known| known.name == *parent);
                let parent = String::from(&**parent);
                Some(found.ok_or(HierarchyError::UnknownParent { name: name.clone(), parent })?)
            }
        };
        let depth = parent.map_or(0, |parent| depths[parent] + 1);
        if depth >= Limits::MOST {
            return Err(HierarchyError::TooDeep { name });
        }
        if let Some(above) = parent {
            let first = parents.iter().position(|known| *known == parent).map(|first| &all[first]);
            let clashes = first.is_some_and(|first| first.is_keyed || declared.is_keyed);
            if clashes || all[above].is_keyed && !declared.is_keyed {
                let parent = (*all[above].name).into();
                return Err(HierarchyError::MixedChildren { name, parent });
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
) -> Result<Vec<InForce>, HierarchyError> {
    all.iter().try_for_each(check_alone)?;
    // The guarantees of the classes below each: rates, and bursts.
    let (mut rates, mut bursts) = (vec![0_u128; all.len()], vec![0_u128; all.len()]);
    // Children come after their parents.
    for (index, Declared { name, class, .. }) in all.iter().enumerate().rev() {
        let own = rate_of(&class.rate);
        if rates[index] > own.saturating_add(1) {
            let (parent, sum) = (String::from(&**name), per_second(rates[index]));
            return Err(HierarchyError::RatesExceedParent { parent, rate: class.rate, sum });
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
fn check_alone(declared: &Declared) -> Result<(), HierarchyError> {
    let Declared { name, class, is_keyed } = declared;
    let name = || String::from(&**name);
    let quota = |error| HierarchyError::Quota { name: name(), error };
    class.rate.check_countable().map_err(quota)?;
    class.ceiling.map_or(Ok(()), |ceiling| ceiling.check_countable()).map_err(quota)?;
    let priority = class.priority;
    if priority >= PRIORITIES {
        return Err(HierarchyError::Priority { name: name(), priority });
    }
    match (is_keyed, class.expected, class.bounded) {
        (false, Some(_), _) => Err(HierarchyError::NotKeyed { name: name(), what: "expected" }),
        (false, _, Some(_)) => Err(HierarchyError::NotKeyed { name: name(), what: "table" }),
        (true, None, _) if class.rate.capacity() > 0 || class.rate.count() > 0 => {
            Err(HierarchyError::ExpectedMissing { name: name(), rate: class.rate })
        }
        _ => Ok(()),
    }
}

/// Works out a class's ceiling, and checks it. `below` is the bursts of all classes below.
fn in_force_of(
    declared: &Declared,
    parent: Option<Quota>,
    below: u128,
) -> Result<InForce, HierarchyError> {
    let Declared { name, class, .. } = declared;
    let name = || String::from(&**name);
    let (rate, priority) = (class.rate, class.priority);
    let is_hard = class.is_hard.unwrap_or(parent.is_none());
    let needed = below.saturating_add(rate.capacity().into());
    let ceiling = match class.ceiling {
        Some(ceiling) => ceiling,
        None if !is_hard || below == 0 => rate,
        None => rate.burst(u64::try_from(needed).unwrap_or(u64::MAX)),
    };
    ceiling.check().map_err(|error| HierarchyError::Quota { name: name(), error })?;
    if is_above(&rate, &ceiling) {
        let (rate, ceiling) = (rate.to_string(), ceiling.to_string());
        return Err(HierarchyError::CeilingBelowRate { name: name(), rate, ceiling });
    }
    if let Some(parent) = parent.filter(|parent| is_above(&ceiling, parent)) {
        let (ceiling, parent) = (ceiling.to_string(), parent.to_string());
        return Err(HierarchyError::CeilingAboveParent { name: name(), ceiling, parent });
    }
    let burst = ceiling.capacity();
    if is_hard && below > 0 && u128::from(burst) < needed {
        return Err(HierarchyError::HardWithoutHeadroom { name: name(), burst, needed });
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

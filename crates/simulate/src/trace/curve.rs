//! Allocation and fragmentation by the load that has arrived, in steps of one percent, as the published experiments count them.

/// The largest load of a curve, in percent; what arrives above it is not counted.
const LOAD_MAX: usize = 1000;

/// A curve by load.
#[derive(Clone, Debug, Default)]
pub struct Curve {
    /// By percent of load.
    points: Vec<Sums>,
}

/// The sums over the arrivals at one percent of load.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    arrivals: u32,
    allocation: f64,
    fragmentation: f64,
}

/// A point of a curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// GPUs that pods hold, in percent of all; to two digits.
    pub allocation_percent: f64,
    /// Free GPUs that the next typical pod can't use, in percent of all; to two digits.
    pub fragmentation_percent: f64,
}

fn hundredths(percent: f64) -> f64 {
    (percent * 100.0).round() / 100.0
}

impl Curve {
    /// Adds the state after an arrival.
    pub(super) fn add(&mut self, load: f64, allocation: f64, fragmentation: f64) {
        let at = load.round_ties_even() as usize;
        if at > LOAD_MAX {
            return;
        }
        if self.points.len() <= at {
            self.points.resize(at + 1, Sums::default());
        }
        let sums = &mut self.points[at];
        sums.arrivals += 1;
        sums.allocation += hundredths(allocation);
        sums.fragmentation += fragmentation;
    }

    /// The mean over the arrivals at this percent of load; where none arrived, at the next percent below or above.
    pub fn at(&self, load: usize) -> Option<Point> {
        let near = [Some(load), load.checked_sub(1), Some(load + 1)];
        let mut sums = near.into_iter().flatten().filter_map(|at| self.points.get(at));
        let Sums {
            arrivals,
            allocation,
            fragmentation,
        } = *sums.find(|sums| sums.arrivals > 0)?;
        Some(Point {
            allocation_percent: hundredths(allocation / f64::from(arrivals)),
            fragmentation_percent: hundredths(fragmentation / f64::from(arrivals)),
        })
    }

    /// The largest load that arrived, in percent.
    pub fn load_max(&self) -> usize {
        self.points.len().saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_the_mean_of_the_arrivals_that_round_to_it() {
        let mut curve = Curve::default();
        for (load, allocation) in [(0.5, 1.0), (1.5, 2.0), (2.4, 4.0), (4.0, 9.999)] {
            curve.add(load, allocation, allocation / 2.0);
        }
        let allocation = |load| curve.at(load).map(|point| point.allocation_percent);
        // Halves round to the even number.
        assert_eq!([0, 1, 2, 3, 4].map(allocation), [1.0, 1.0, 3.0, 3.0, 10.0].map(Some));
        assert_eq!(curve.at(2).map(|point| point.fragmentation_percent), Some(1.5));
        assert_eq!((allocation(6), curve.load_max()), (None, 4));
    }
}

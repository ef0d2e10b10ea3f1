//! A linear program that grows by columns: maximise the costs times x, where each row of the columns times x is at most the bound of the
//! row. All bounds and all x are at least 0, so that x = 0 is a solution to start from.
//!
//! The revised simplex method with a dense inverse of the basis: a pivot takes time in proportion to the square of the rows. It never
//! depends on anything but its input, and ends after a given number of pivots.

/// Below this, a number counts as zero.
const ZERO: f64 = 1e-9;

/// A variable: its cost, and its entries by row.
#[derive(Clone, Debug)]
struct Column {
    cost: f64,
    entries: Vec<(usize, f64)>,
}

/// The program and its current solution.
#[derive(Clone, Debug)]
pub(super) struct LinearProgram {
    columns: Vec<Column>,
    /// By row: the variable that is basic there.
    basis: Vec<Variable>,
    /// By row: whether its slack is basic.
    slack_is_basic: Vec<bool>,
    /// By column: whether it is basic.
    column_is_basic: Vec<bool>,
    /// The inverse of the basis, row by row.
    inverse: Vec<f64>,
    /// By row: the value of its basic variable.
    values: Vec<f64>,
}

#[derive(Clone, Copy, Debug)]
enum Variable {
    /// What is left of the bound of this row.
    Slack(usize),
    Column(usize),
}

impl LinearProgram {
    /// A program without variables.
    pub(super) fn new(bounds: Vec<f64>) -> LinearProgram {
        debug_assert!(bounds.iter().all(|bound| *bound >= 0.0));
        let rows = bounds.len();
        let mut inverse = vec![0.0; rows * rows];
        for row in 0..rows {
            inverse[row * rows + row] = 1.0;
        }
        LinearProgram {
            columns: Vec::new(),
            basis: (0..rows).map(Variable::Slack).collect(),
            slack_is_basic: vec![true; rows],
            column_is_basic: Vec::new(),
            inverse,
            values: bounds,
        }
    }

    /// Adds a variable; the entries are its row numbers and factors.
    pub(super) fn add_column(&mut self, cost: f64, entries: Vec<(usize, f64)>) {
        self.columns.push(Column { cost, entries });
        self.column_is_basic.push(false);
    }

    /// Improves the solution until it is optimal, or `pivots` are used up; counts them down.
    pub(super) fn maximise(&mut self, pivots: &mut u32) {
        while *pivots > 0 {
            let Some(entering) = self.entering(&self.duals()) else {
                return;
            };
            *pivots -= 1;
            let direction = self.direction(entering);
            // All our programs are bounded; a direction without a bound is a rounding error.
            let Some(row) = self.leaving_row(&direction) else {
                return;
            };
            self.pivot(entering, row, &direction);
        }
    }

    /// By row: how much the result grows with the bound of the row.
    pub(super) fn duals(&self) -> Vec<f64> {
        let rows = self.basis.len();
        let mut duals = vec![0.0; rows];
        for (row, basic) in self.basis.iter().enumerate() {
            let cost = self.cost(*basic);
            if cost != 0.0 {
                let of_row = &self.inverse[row * rows..(row + 1) * rows];
                duals
                    .iter_mut()
                    .zip(of_row)
                    .for_each(|(dual, entry)| *dual += cost * entry);
            }
        }
        duals
    }

    /// The result of the current solution.
    pub(super) fn objective(&self) -> f64 {
        let basics = self.basis.iter().zip(&self.values);
        basics.map(|(basic, value)| self.cost(*basic) * value).sum()
    }

    fn cost(&self, variable: Variable) -> f64 {
        match variable {
            Variable::Slack(_) => 0.0,
            Variable::Column(at) => self.columns[at].cost,
        }
    }

    fn set_basic(&mut self, variable: Variable, is_basic: bool) {
        match variable {
            Variable::Slack(row) => self.slack_is_basic[row] = is_basic,
            Variable::Column(at) => self.column_is_basic[at] = is_basic,
        }
    }

    /// The variable that adds most per unit.
    fn entering(&self, duals: &[f64]) -> Option<Variable> {
        let mut best = (ZERO, None);
        for (row, dual) in duals.iter().enumerate() {
            if -dual > best.0 && !self.slack_is_basic[row] {
                best = (-dual, Some(Variable::Slack(row)));
            }
        }
        for (at, column) in self.columns.iter().enumerate() {
            if self.column_is_basic[at] {
                continue;
            }
            let price: f64 = column.entries.iter().map(|(row, entry)| duals[*row] * entry).sum();
            if column.cost - price > best.0 {
                best = (column.cost - price, Some(Variable::Column(at)));
            }
        }
        best.1
    }

    /// By row: how much its basic variable falls per unit of the entering one.
    fn direction(&self, entering: Variable) -> Vec<f64> {
        let slack;
        let entries = match entering {
            Variable::Slack(row) => {
                slack = [(row, 1.0)];
                &slack[..]
            }
            Variable::Column(at) => &self.columns[at].entries,
        };
        let rows = self.basis.len();
        let inverse = self.inverse.chunks_exact(rows);
        inverse
            .map(|of_row| entries.iter().map(|(row, entry)| of_row[*row] * entry).sum())
            .collect()
    }

    /// The row whose variable reaches 0 first; of those that do so together, the one with the largest pivot, for exactness.
    fn leaving_row(&self, direction: &[f64]) -> Option<usize> {
        let mut best: Option<(f64, usize)> = None;
        for (row, fall) in direction.iter().enumerate().filter(|(_, fall)| **fall > ZERO) {
            let steps = self.values[row].max(0.0) / fall;
            let is_better =
                best.is_none_or(|(least, of)| steps < least - ZERO || (steps <= least + ZERO && *fall > direction[of]));
            if is_better {
                best = Some((steps, row));
            }
        }
        best.map(|(_, row)| row)
    }

    fn pivot(&mut self, entering: Variable, row: usize, direction: &[f64]) {
        let rows = self.basis.len();
        let step = self.values[row].max(0.0) / direction[row];
        let mut pivot_row = self.inverse[row * rows..(row + 1) * rows].to_vec();
        pivot_row.iter_mut().for_each(|entry| *entry /= direction[row]);
        for (other, fall) in direction.iter().enumerate().filter(|(_, fall)| **fall != 0.0) {
            if other != row {
                let of_row = &mut self.inverse[other * rows..(other + 1) * rows];
                of_row
                    .iter_mut()
                    .zip(&pivot_row)
                    .for_each(|(entry, pivot)| *entry -= fall * pivot);
                self.values[other] -= fall * step;
            }
        }
        self.inverse[row * rows..(row + 1) * rows].copy_from_slice(&pivot_row);
        self.values[row] = step;
        self.set_basic(self.basis[row], false);
        self.set_basic(entering, true);
        self.basis[row] = entering;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The best value of a program of two variables: it lies where two of the lines meet.
    fn by_corners(costs: [f64; 2], rows: &[([f64; 2], f64)]) -> f64 {
        let axes = [([1.0, 0.0], 0.0), ([0.0, 1.0], 0.0)];
        let lines: Vec<([f64; 2], f64)> = rows.iter().copied().chain(axes).collect();
        let mut best = 0.0f64;
        for (at, (a, bound_a)) in lines.iter().enumerate() {
            for (b, bound_b) in &lines[at + 1..] {
                let determinant = a[0] * b[1] - a[1] * b[0];
                if determinant.abs() < 1e-9 {
                    continue;
                }
                let x = (bound_a * b[1] - a[1] * bound_b) / determinant;
                let y = (a[0] * bound_b - bound_a * b[0]) / determinant;
                let holds = |(row, bound): &([f64; 2], f64)| row[0] * x + row[1] * y <= bound + 1e-7;
                if x >= -1e-7 && y >= -1e-7 && rows.iter().all(holds) {
                    best = best.max(costs[0] * x + costs[1] * y);
                }
            }
        }
        best
    }

    proptest! {
        #[test]
        fn the_result_is_that_of_the_best_corner(
            costs in prop::array::uniform2(0u8..20),
            rows in prop::collection::vec((prop::array::uniform2(0i8..9), 0u8..30), 1..6),
        ) {
            // The sum of both variables is bounded, so that the program is.
            let rows: Vec<([f64; 2], f64)> = rows
                .iter()
                .map(|(row, bound)| (row.map(f64::from), f64::from(*bound)))
                .chain([([1.0, 1.0], 50.0)])
                .collect();
            let costs = costs.map(f64::from);
            let mut program = LinearProgram::new(rows.iter().map(|(_, bound)| *bound).collect());
            for (at, cost) in costs.iter().enumerate() {
                program.add_column(*cost, rows.iter().enumerate().map(|(row, (of, _))| (row, of[at])).collect());
                program.maximise(&mut 100);
            }
            let expect = by_corners(costs, &rows);
            prop_assert!((program.objective() - expect).abs() < 1e-6, "{} {expect}", program.objective());
            // By duality the bounds at their prices are worth the same.
            let worth: f64 = program.duals().iter().zip(&rows).map(|(dual, (_, bound))| dual * bound).sum();
            prop_assert!((worth - expect).abs() < 1e-6, "{worth} {expect}");
        }
    }
}

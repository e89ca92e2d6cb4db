//! Tables for people.

use comfy_table::{Cell, CellAlignment, ContentArrangement, presets};

use super::{Failure, Output};

/// A table that is put together row by row and then shown.
#[derive(Debug)]
pub(crate) struct Table(comfy_table::Table);

impl Table {
    /// A table with these columns; a name that begins with `>` makes a column of numbers, set to the right.
    pub(crate) fn new(columns: &[&str]) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
        table.set_header(columns.iter().map(|name| Cell::new(name.trim_start_matches('>').to_uppercase())));
        for (at, name) in columns.iter().enumerate() {
            if let (true, Some(column)) = (name.starts_with('>'), table.column_mut(at)) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        Self(table)
    }

    /// Adds a row.
    pub(crate) fn row<T: ToString>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.0.add_row(cells.into_iter().map(|cell| cell.to_string()));
    }

    /// The table as text, without a line's end behind it.
    pub(crate) fn text(&self) -> String {
        self.0.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
    }

    /// Writes the table to standard output.
    pub(crate) fn show(&self, output: Output) -> Result<(), Failure> {
        output.line(&self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_set_to_the_right() {
        let mut table = Table::new(&["name", ">backlog"]);
        table.row(["a", "7"]);
        table.row(["b", "1,234"]);
        let lines: Vec<_> = table.text().lines().map(str::to_owned).collect();
        assert_eq!(lines, [" NAME  BACKLOG", " a           7", " b       1,234"]);
    }
}

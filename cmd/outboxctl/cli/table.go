package cli

import (
	"fmt"
	"slices"
	"strings"

	"charm.land/lipgloss/v2"
	"charm.land/lipgloss/v2/table"
)

// grid is a table for people. Empty columns are left out. The last column is cut at the width of the terminal; on
// terminals too narrow for the others each row becomes a few lines.
type grid struct {
	title string
	heads []string
	rows  [][]cell
	empty string // printed instead of a table without rows
}

// cell is untrusted text, and its style.
type cell struct {
	text  string
	style lipgloss.Style
}

func plain(texts ...string) []cell {
	row := make([]cell, len(texts))
	for i, t := range texts {
		row[i] = cell{text: t}
	}
	return row
}

var (
	bold   = lipgloss.NewStyle().Bold(true)
	faint  = lipgloss.NewStyle().Faint(true)
	red    = lipgloss.NewStyle().Foreground(lipgloss.Red)
	yellow = lipgloss.NewStyle().Foreground(lipgloss.Yellow)
	green  = lipgloss.NewStyle().Foreground(lipgloss.Green)
)

const (
	gap     = 2
	minLast = 16 // smallest width of the last column
)

// print prints the table as wide as the terminal.
func (g grid) print(a *app) error {
	if g.title != "" {
		if _, err := fmt.Fprintln(a.out, bold.Render(g.title)); err != nil {
			return err
		}
	}
	if len(g.rows) == 0 {
		return a.say("%s", g.empty)
	}
	g.prune()
	width := 0
	if a.world.Width != nil {
		width = a.world.Width()
	}
	need, natural := g.widths()
	switch {
	case width == 0 || natural <= width:
		return g.table(a, 0)
	case need+minLast <= width:
		return g.table(a, width-need)
	}
	return g.records(a, width)
}

// prune cleans all text, and drops empty columns.
func (g *grid) prune() {
	var keep []int
	for column := range g.heads {
		if slices.ContainsFunc(g.rows, func(row []cell) bool { return row[column].text != "" }) {
			keep = append(keep, column)
		}
	}
	heads := make([]string, len(keep))
	for i, column := range keep {
		heads[i] = g.heads[column]
	}
	rows := make([][]cell, len(g.rows))
	for i, row := range g.rows {
		for _, column := range keep {
			rows[i] = append(rows[i], cell{clean(row[column].text), row[column].style})
		}
	}
	g.heads, g.rows = heads, rows
}

// widths returns the width of all columns but the last, and of all columns.
func (g grid) widths() (need, natural int) {
	for column, head := range g.heads {
		w := lipgloss.Width(head)
		for _, row := range g.rows {
			w = max(w, lipgloss.Width(row[column].text))
		}
		if column == len(g.heads)-1 {
			return need, need + w
		}
		need += w + gap
	}
	return need, need
}

// table prints columns; last is the width of the last one, 0 = no limit.
func (g grid) table(a *app, last int) error {
	t := table.New().Border(lipgloss.HiddenBorder()).BorderTop(false).BorderBottom(false).BorderLeft(false).BorderRight(
		false).
		BorderHeader(false).BorderColumn(false).BorderRow(false).Wrap(false).Headers(g.heads...)
	for _, row := range g.rows {
		texts := make([]string, len(row))
		for i, c := range row {
			texts[i] = c.text
		}
		if end := len(texts) - 1; last > 0 {
			texts[end] = cut(texts[end], last)
		}
		t.Row(texts...)
	}
	t.StyleFunc(func(row, column int) lipgloss.Style {
		style := faint
		if row != table.HeaderRow {
			style = lipgloss.NewStyle()
			if c := g.rows[row][column]; c.text != "" {
				style = c.style
			}
		}
		if column < len(g.heads)-1 {
			style = style.PaddingRight(gap)
		}
		return style
	})
	lines := strings.Split(t.Render(), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	_, err := fmt.Fprintln(a.out, strings.Join(lines, "\n"))
	return err
}

// records prints each row as several lines.
func (g grid) records(a *app, width int) error {
	label := 0
	for _, head := range g.heads {
		label = max(label, lipgloss.Width(head))
	}
	for i, row := range g.rows {
		if i > 0 {
			if err := a.say(""); err != nil {
				return err
			}
		}
		for column, c := range row {
			if c.text == "" {
				continue
			}
			head := faint.Render(g.heads[column] + strings.Repeat(" ", label-lipgloss.Width(g.heads[column])+gap))
			if _, err := fmt.Fprintln(a.out, head+c.style.Render(cut(c.text, max(width-label-gap, minLast)))); err != nil {
				return err
			}
		}
	}
	return nil
}

// cut shortens a text to a width.
func cut(text string, width int) string {
	if lipgloss.Width(text) <= width {
		return text
	}
	var b strings.Builder
	used := 0
	for _, r := range text {
		if used += lipgloss.Width(string(r)); used > width-1 {
			break
		}
		b.WriteRune(r)
	}
	return b.String() + "…"
}

package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// printTable prints the results for readers.
func (b *bench) printTable(w io.Writer, outcomes []outcome) {
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ratio\tvalue\tfloor\taim\tours\trival\t\tnotes")
	for _, o := range outcomes {
		fmt.Fprintf(t, "%s\t%s\t%g\t%g\t%s\t%s\t%s\t%s\n", o.name, o.ratio(), o.floor, o.aim, o.oursText(), o.rivalText(),
			o.verdict(), o.remarks())
	}
	t.Flush()
	if names := unjudged(outcomes); len(names) > 0 {
		fmt.Fprintf(w, "\nnot judged: %s\n", strings.Join(names, ", "))
	}
	if len(b.figures) > 0 {
		fmt.Fprintln(w)
		for _, f := range b.figures {
			fmt.Fprintf(t, "%s\t%s\t(aim: %s)\n", f.name, f.text, f.aim)
		}
		t.Flush()
	}
	fmt.Fprintf(w, "\nmedians of up to %d rounds, %s\n\n", b.rounds, time.Since(b.begun).Round(time.Second))
}

// unjudged returns the names of rows that could not be judged.
func unjudged(outcomes []outcome) (names []string) {
	for _, o := range outcomes {
		if o.unjudged() != "" {
			names = append(names, o.name)
		}
	}
	return names
}

// printRatios prints the results for programs.
func printRatios(w io.Writer, outcomes []outcome) {
	for _, o := range outcomes {
		switch {
		case o.missing != "":
			fmt.Fprintf(w, "MISSING %s %s\n", o.name, o.missing)
			continue
		case o.err != nil:
			fmt.Fprintf(w, "FAILED %s %s\n", o.name, o.remarks())
			continue
		}
		if why := o.unjudged(); why != "" {
			fmt.Fprintf(w, "UNJUDGED %s %s\n", o.name, why)
			continue
		}
		fmt.Fprintf(w, "RATIO %s %.2f floor %g\n", o.name, o.value, o.floor)
		for _, why := range o.broken {
			fmt.Fprintf(w, "BROKEN %s %s\n", o.name, why)
		}
	}
}

// printMarkdown prints the results for the documentation.
func (b *bench) printMarkdown(w io.Writer, machine []string, outcomes []outcome) {
	for _, m := range machine {
		fmt.Fprintf(w, "- %s\n", m)
	}
	fmt.Fprintf(w, "\n| what | ours | rival | ratio | floor |\n|---|---:|---:|---:|---:|\n")
	for _, o := range outcomes {
		what := o.what
		if notes := o.remarks(); notes != "" {
			what += " (" + notes + ")"
		}
		fmt.Fprintf(w, "| `%s`: %s | %s | %s | %s | %g |\n", o.name, what, o.oursText(), o.rivalText(), o.ratio(), o.floor)
	}
	if len(b.figures) > 0 {
		fmt.Fprintf(w, "\n| figure | measured |\n|---|---|\n")
		for _, f := range b.figures {
			fmt.Fprintf(w, "| `%s` | %s |\n", f.name, f.text)
		}
	}
}

func (o outcome) ratio() string {
	if o.missing != "" || o.err != nil || o.short {
		return "n/a"
	}
	return fmt.Sprintf("%.2f", o.value)
}

func (o outcome) verdict() string {
	switch {
	case o.missing != "":
		return ""
	case o.err != nil:
		return "FAILED"
	case len(o.broken) > 0:
		return "BROKEN"
	case o.unjudged() != "":
		return "not judged"
	case o.value < o.floor:
		return "BELOW"
	case o.value < o.aim:
		return "ok"
	}
	return "aim"
}

func (o outcome) remarks() string {
	switch {
	case o.missing != "":
		return o.missing
	case o.err != nil:
		return strings.ReplaceAll(o.err.Error(), "\n", "; ")
	}
	notes := o.notes
	if why := o.unjudged(); why != "" {
		notes = append([]string{why}, notes...)
	}
	return strings.Join(append(o.broken, notes...), "; ")
}

func (o outcome) oursText() string { return o.sideText(o.oursMed, o.oursSpan) }

func (o outcome) rivalText() string { return o.sideText(o.rivMed, o.rivSpan) }

func (o outcome) sideText(median float64, span string) string {
	if median == 0 || o.rival == "" {
		return ""
	}
	text := number(median) + " " + cmp.Or(o.unit, "msg/s")
	if span != "" {
		text += " (" + span + ")"
	}
	return text
}
